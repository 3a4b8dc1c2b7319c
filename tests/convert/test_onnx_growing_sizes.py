"""Networks whose sizes would follow from the open ones by ever longer formulas."""

import numpy as np
import onnx.parser
import pytest

from megengine.convert.onnx import load
from megengine.convert.onnx.exporter import to_model
from megengine.core.errors import FileFormatError, ShapeError
from megengine.quantization import quantize_model, verify
from tests.helpers.onnx_runtime import answers, same, session_of

LEVELS = 5


def wavenet():
    """Convolutions of growing dilation; what goes around each is cut to its length, from the end: x[..., -n:]."""
    rng, body, weights = np.random.default_rng(0), [], []
    for i in range(LEVELS):
        weights.append(onnx.numpy_helper.from_array(rng.normal(0, 0.4, (8, 4, 2)).astype(np.float32), f"w{i}"))
        body.append(f"""
            h{i} = Conv <dilations = [{2**i}], kernel_shape = [2]> (x{i}, w{i})
            a{i}, b{i} = Split <axis = 1> (h{i}, halves)
            ta{i} = Tanh(a{i})
            sb{i} = Sigmoid(b{i})
            g{i} = Mul(ta{i}, sb{i})
            s{i} = Shape(g{i})
            n{i} = Gather(s{i}, last)
            m{i} = Neg(n{i})
            r{i} = Slice(x{i}, m{i}, ends, last)
            x{i + 1} = Add(g{i}, r{i})
            e{i} = Slice(g{i}, minus, ends, last)""")
    ends = ", ".join(f"e{i}" for i in range(LEVELS))
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[b, 4, t] x0) => (float[b, 4, u] y, float[b, 4, 1] z)
        <int64[1] last = {{2}}, int64[1] minus = {{-1}}, int64[1] ends = {{9223372036854775807}},
         int64[2] halves = {{4, 4}}>
        {{ {"".join(body)}
           y = Identity(x{LEVELS})
           z = Sum({ends}) }}""")
    model.graph.initializer.extend(weights)
    return model


def test_what_goes_around_convolutions_is_cut_to_their_length():
    """Formulas of the lengths grew with every level: the written network was read in minutes."""
    source = wavenet()
    net, session = load(source), session_of(source)
    assert str(net.graph.outputs[0].shape[2]) == f"t - {2**LEVELS - 1}"
    rng = np.random.default_rng(1)
    xs = [rng.standard_normal(shape).astype(np.float32) for shape in ((1, 4, 40), (2, 4, 32))]
    for x in xs:
        same([y.numpy() for y in net(x)], answers(session, [x]))
    model = quantize_model(net, xs)
    assert verify(model, xs).exact
    again = load(to_model(model.integer_graph))
    for x in xs:
        same([y.numpy() for y in again(x)], [y.numpy() for y in model(x)])


def test_lengths_are_no_remedy_for_operators_that_are_not_supported():
    """The name of an open axis, n, stood in the word "node", and other lengths were offered."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 3]>
        net (float[n, 4] x) => (float[n, 4] y) { y = ai.onnx.ml.Normalizer <norm = "L2"> (x) }""")
    with pytest.raises(FileFormatError, match="not supported: 'ai.onnx.ml::Normalizer'") as refused:
        load(model)
    assert not any("usual length" in note for note in refused.value.__notes__)


def test_lengths_of_inputs_that_follow_from_others_are_formulas():
    """Masks of decoders have "past + 1" places, and inputs of networks that were cut in two such sizes."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[b, all] mask, float[b, past] x, float[b, 1] new) => (float[b, u] y)
        { c = Concat <axis = 1> (x, new)
          y = Add(c, mask) }""")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "past + 1"
    rng, net = np.random.default_rng(0), load(model)
    assert str(net.graph.inputs[0].shape) == str(net.graph.outputs[0].shape) == "(b, past + 1)"
    xs = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 6), (2, 5), (2, 1))]
    for one in (net, load(to_model(net))):
        np.testing.assert_array_equal(one(*xs).numpy(), np.concatenate(xs[1:], axis=1) + xs[0])
    with pytest.raises(ShapeError, match=r"axis 1 is 7; expected past \+ 1 = 6"):
        net(np.zeros((2, 7), np.float32), *xs[1:])
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "seq-len"
    assert "seq-len" in str(load(model, {"x": ("b", "k")}, example_sizes={"k": 4, "seq-len": 5}).graph.inputs[0].shape)
