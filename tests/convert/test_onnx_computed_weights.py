"""Convolutions whose weights are values of the network, of open lengths too: templates to compare pictures with."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from megengine import plan
from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.quantization import quantize_model, verify
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)
info = helper.make_tensor_value_info


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes, x, z, constants=()):
    stored = [numpy_helper.from_array(value, name) for name, value in dict(constants).items()]
    graph = helper.make_graph(nodes, "net", [info("x", 1, x), info("z", 1, z)], [info("y", 1, None)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compared(kind, **attrs):
    return [helper.make_node(kind, ["x", "z"], ["y"], **attrs)]


IMAGE, SIZES = ["b", 4, "h", "w"], [((1, 4, 9, 8), (3, 3)), ((2, 4, 12, 11), (5, 4)), ((3, 4, 6, 7), (1, 2))]
CASES = {
    "every length": (compared("Conv"), ["o", 4, "kh", "kw"], (2, 4)),
    "channels apart": (compared("Conv", group=4), [4, 1, "kh", "kw"], (4, 1)),
    "transposed": (compared("ConvTranspose", strides=[2, 2]), [4, 2, "kh", "kw"], (4, 2)),
}


def check(made, calls):
    net = load(made)
    written = to_model(net)
    runtime, of_written, again, compiled = session_of(made), session_of(written), load(written), plan.compile(net)
    for arrays in calls:
        wanted = np.asarray(answers(runtime, arrays)[0])
        for got in (net(*arrays), again(*arrays), compiled(*arrays)[0], answers(of_written, arrays)[0]):
            np.testing.assert_allclose(np.asarray(got), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_of_open_lengths(name):
    nodes, stated, channels = CASES[name]
    check(model(nodes, IMAGE, stated), [[normal(*x), normal(*channels, *k)] for x, k in SIZES])


def test_a_kernel_of_open_lengths_along_one_axis():
    made = model(compared("Conv"), ["b", 4, "t"], [2, 4, "k"])
    check(made, [[normal(b, 4, t), normal(2, 4, k)] for b, t, k in ((1, 9, 3), (2, 12, 5), (3, 6, 1))])


def test_a_template_of_any_size_is_compared_in_a_quantized_network():
    """SiamFC: both pictures pass one network, and the results of one are the weight for those of the other."""
    make, pictures = helper.make_node, ((1, 32, 32), (2, 40, 44))
    nodes = [
        *(make("Conv", ["x", "k"], ["a"], strides=[2, 2]), make("Conv", ["z", "k"], ["c"], strides=[2, 2])),
        make("Conv", ["a", "c"], ["y"]),
    ]
    made = model(nodes, ["b", 3, "h", "w"], [1, 3, "th", "tw"], {"k": normal(4, 3, 3, 3) / 4})
    calls = [
        [normal(b, 3, h, w), normal(1, 3, *t)] for (b, h, w), t in zip(pictures, ((12, 12), (15, 13)), strict=True)
    ]
    check(made, calls)
    quantized = quantize_model(load(made), [tuple(one) for one in calls])
    assert verify(quantized, [tuple(one) for one in calls]).exact
    wanted, of_integers = session_of(made), session_of(to_model(quantized.integer_graph))
    for arrays in calls:
        y, got = np.asarray(answers(wanted, arrays)[0]), quantized(*arrays).numpy()
        assert 10 * np.log10(np.mean(np.square(y)) / np.mean((got - y) ** 2)) > 30
        np.testing.assert_allclose(np.asarray(answers(of_integers, arrays)[0]), got, rtol=1e-5, atol=1e-5)
