"""Integer networks with open axes: the export in integer operators gives the specification's values at every size."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.quantization import quantize_model, verify
from megengine.quantization.checks.verify import specification
from megengine.traced_module.sizes import specialised
from tests.helpers.onnx_runtime import answers, session_of

RNG = np.random.default_rng(0)


def network(*nodes, **constants):
    """A convolution of a picture of open sizes, then nodes from c to y."""
    conv = helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    stored = {"w": RNG.normal(0, 0.3, (4, 3, 3, 3)).astype(np.float32), **constants}
    graph = helper.make_graph(
        [conv, *nodes],
        "net",
        [helper.make_tensor_value_info("x", 1, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def node(kind, inputs, outputs, **attrs):
    return helper.make_node(kind, inputs.split(), outputs.split(), **attrs)


def pictures():
    return [RNG.normal(0, 1, shape).astype(np.float32) for shape in ((1, 3, 8, 6), (2, 3, 5, 9), (1, 3, 12, 7))]


HEAD = {
    "u": RNG.normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32),
    "t": RNG.normal(0, 0.3, (2, 8, 1, 1)).astype(np.float32),
    "v": RNG.normal(0, 0.3, (2, 4, 1, 1)).astype(np.float32),
}
POOL = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
NETS = {
    "mean": [node("ReduceMean", "c", "m", axes=[2, 3], keepdims=1), node("Conv", "m v", "y")],
    "flat mean": [node("Conv", "c v", "d"), node("ReduceMean", "d", "y", axes=[2], keepdims=0)],
    "pool": [node("AveragePool", "c", "m", **POOL), node("Conv", "m v", "y")],
    "halved": [node("Conv", "c v", "y", auto_pad="SAME_UPPER", strides=[2, 2])],
    "ends": [node("AveragePool", "c", "m", ceil_mode=1, **POOL), node("Conv", "m v", "y")],
    "tops": [node("MaxPool", "c", "m", ceil_mode=1, **POOL), node("Conv", "m v", "y")],
    "spread": [
        node("GlobalAveragePool", "c", "m"),
        node("Conv", "m u", "d"),
        node("Shape", "c", "sizes"),
        helper.make_node("Resize", ["d", "", "", "sizes"], ["r"], mode="linear"),
        node("Concat", "c r", "j", axis=1),
        node("Conv", "j t", "y"),
    ],
    "global": [node("GlobalAveragePool", "c", "m"), node("Conv", "m v", "y")],
}


@pytest.mark.parametrize("name", NETS)
def test_means_and_windows_over_open_axes(name):
    model = quantize_model(network(*NETS[name], **HEAD), pictures())
    check_export(model, pictures())


def check_export(model, xs):
    written = to_model(model.integer_graph)
    session, again = session_of(written), load(written)
    for x in xs:
        graph = specialised(model.integer_graph, [x.shape])
        wanted = specification(graph, [x])[graph.outputs[0].name]
        np.testing.assert_array_equal(answers(session, [x])[0], wanted)
        np.testing.assert_array_equal(again(x).numpy(), wanted)


RESIZES = {
    "linear": ({"mode": "linear"}, [1, 1, 2, 2]),
    "corners": ({"mode": "linear", "coordinate_transformation_mode": "align_corners"}, [1, 1, 2, 3]),
    "cubic": ({"mode": "cubic", "cubic_coeff_a": -0.75}, [1, 1, 2, 2]),
    "nearest": ({"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, None),
    "linear to a size": ({"mode": "linear"}, None),
    "smaller": ({"mode": "linear"}, [1, 1, 0.5, 0.5]),
}


@pytest.mark.parametrize("name", RESIZES)
def test_resizes_of_open_sizes(name):
    """By factors, or to the size of another branch, as in feature pyramids."""
    attrs, factors = RESIZES[name]
    stored = dict(HEAD)
    nodes = [node("Conv", "c v", "d")]
    if factors is None:
        pooled = node("MaxPool", "c", "p", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
        nodes = [pooled, node("Conv", "p u", "k"), node("Shape", "c", "sizes"), node("Resize", "k", "m", **attrs)]
        nodes[-1].input[:] = ["k", "", "", "sizes"]
    else:
        stored["factors"] = np.array(factors, np.float32)
        nodes = [node("Conv", "c u", "k"), node("Resize", "k", "m", **attrs)]
        nodes[-1].input[:] = ["k", "", "factors"]
    model = quantize_model(network(*nodes, node("Conv", "m v", "y"), **stored), pictures())
    check_export(model, pictures())


def test_a_norm_over_an_open_row_computes_in_integers():
    """A group norm of one group reshapes all places into one row."""
    shape = {"row": np.array([0, 1, -1], np.int64), "one": np.ones(1, np.float32), "none": np.zeros(1, np.float32)}
    nodes = [
        *(node("Reshape", "c row", "r"), node("InstanceNormalization", "r one none", "n"), node("Shape", "c", "s")),
        *(node("Reshape", "n s", "b"), node("Conv", "b v", "y")),
    ]
    model = quantize_model(network(*nodes, **shape, **HEAD), pictures())
    assert verify(model, pictures()).exact
    assert any(getattr(expr, "op", "") == "qnorm" for expr in model.integer_graph.exprs())
    session = session_of(to_model(model.integer_graph))
    for x in pictures():
        np.testing.assert_array_equal(answers(session, [x])[0], model(x).numpy())


def test_norms_over_open_pictures_are_written_for_every_size():
    """A style transfer's last norm stays in float; its LayerNormalization had a scale of the example's size."""
    stored = {"g": np.ones(4, np.float32), "o": np.zeros(4, np.float32), **HEAD}
    model = quantize_model(network(node("InstanceNormalization", "c g o", "y"), **stored), pictures())
    for written in (to_model(model.exchange_graph()), to_model(model.integer_graph)):
        session, again = session_of(written), load(written)
        for x in pictures():
            np.testing.assert_allclose(answers(session, [x])[0], again(x).numpy(), atol=0.05)
            np.testing.assert_allclose(again(x).numpy(), model(x).numpy(), atol=0.05)
