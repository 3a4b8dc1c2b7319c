"""Layers of values that sizes alone decide: in integers, exact at every size."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from megengine.convert.onnx import load
from megengine.quantization import quantize_model, verify

RNG = np.random.default_rng(0)


def decoder(start):
    """Queries, the same for every sample, read a layer and then look at the input: x [b, t, 8]."""
    stored = {
        "start": start,
        "q": RNG.normal(0, 0.3, (8, 8)).astype(np.float32),
        "k": RNG.normal(0, 0.3, (8, 8)).astype(np.float32),
        "tail": np.array([3, 8]),
        "first": np.array([0]),
        "one": np.array([1]),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Slice", ["sizes", "first", "one"], ["batch"]),
        helper.make_node("Concat", ["batch", "tail"], ["wanted"], axis=0),
        helper.make_node("Expand", ["start", "wanted"], ["queries"]),
        helper.make_node("MatMul", ["queries", "q"], ["asked"]),
        helper.make_node("Tanh", ["asked"], ["bent"]),
        helper.make_node("MatMul", ["x", "k"], ["keys"]),
        helper.make_node("Transpose", ["keys"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["bent", "turned"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", 1, ["b", "t", 8])],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


@pytest.mark.parametrize("start", [RNG.normal(0, 1, (1, 3, 8)), np.zeros((1, 3, 8))])
def test_queries_and_first_states(start):
    net = decoder(start.astype(np.float32))
    data = [RNG.normal(0, 1, shape).astype(np.float32) for shape in ((1, 4, 8), (3, 7, 8))]
    model = quantize_model(net, data)
    assert not [op for op in model.report.floating if op.macs]
    assert verify(model, data).exact
    for x in data:
        wanted = net(x).numpy()
        assert np.abs(model(x).numpy() - wanted).max() <= 0.05 * np.abs(wanted).max()


_DISTANCES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,t,8] x, float[8,8] w) => (float[b,t,t] y) {
    s = Shape (x)
    one = Constant <value = int64 {1}> ()
    t = Gather (s, one)
    zero = Constant <value = int64 {0}> ()
    places = Range (zero, t, one)
    axis = Constant <value = int64[1] {1}> ()
    column = Unsqueeze (places, axis)
    far = Sub (places, column)
    half = Constant <value = int64 {16}> ()
    shifted = Add (far, half)
    bias = Cast <to = 1> (shifted)
    h = MatMul (x, w)
    turned = Transpose <perm = [0, 2, 1]> (x)
    scores = MatMul (h, turned)
    y = Add (scores, bias)
}"""


def test_whole_numbers_that_follow_from_sizes_keep_their_dtype():
    """`shifted` adds int64 places and a single int64."""
    model = onnx.parser.parse_model(_DISTANCES)
    model.graph.input.pop()
    model.graph.initializer.append(numpy_helper.from_array(RNG.normal(0, 1, (8, 8)).astype(np.float32), "w"))
    data = [RNG.normal(0, 1, (2, n, 8)).astype(np.float32) for n in (6, 9)]
    assert verify(quantize_model(load(model), data), data).exact


_PLACES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,t,8] x) => (float[b,t,t] y) {
    s = Shape (x)
    one = Constant <value = int64[1] {1}> ()
    zero = Constant <value = int64[1] {0}> ()
    two = Constant <value = int64[1] {2}> ()
    t = Slice (s, one, two)
    part = Slice (table, zero, t)
    places = MatMul (part, w)
    turned = Transpose <perm = [1, 0]> (places)
    h = MatMul (x, v)
    y = MatMul (h, turned)
}"""


def test_a_part_of_a_stored_table_has_the_range_of_the_table():
    """Places far from the first are larger; calibration sees the near ones only."""
    model = onnx.parser.parse_model(_PLACES)
    far = RNG.uniform(-1, 1, (40, 8)).astype(np.float32)
    far[:, 0] = np.linspace(0.1, 5, 40)
    stored = {"table": far, **{name: RNG.normal(0, 1, (8, 8)).astype(np.float32) for name in "wv"}}
    stored["w"][0] = 0  # so that results do not grow
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    net = load(model)
    data = [RNG.normal(0, 1, (2, n, 8)).astype(np.float32) for n in (6, 9, 36)]
    quantized = quantize_model(net, data)
    assert not [op for op in quantized.report.floating if op.macs]
    assert verify(quantized, data).exact
    near = quantize_model(net, data[:2])
    dtype = near.frozen.edges["part"]
    assert dtype.only_scale * 255 >= far.max() - far.min() - 1e-3


_WAVES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[b,t,8] x) => (float[b,t,t] y) {
    s = Shape (x)
    at = Constant <value = int64 {1}> ()
    t = Gather (s, at)
    zero = Constant <value = int64 {0}> ()
    places = Range (zero, t, at)
    axis = Constant <value = int64[1] {1}> ()
    column = Unsqueeze (places, axis)
    real = Cast <to = 1> (column)
    angles = Mul (real, speeds)
    sines = Sin (angles)
    cosines = Cos (angles)
    waves = Concat <axis = 1> (sines, cosines)
    r = MatMul (waves, w)
    turned = Transpose <perm = [1, 0]> (r)
    h = MatMul (x, v)
    y = MatMul (h, turned)
}"""


def test_layers_of_waves_of_places_are_integers_at_lengths_that_calibration_lacks():
    """What a layer makes of slow sines grows beyond the example's length, but not without end."""
    model = onnx.parser.parse_model(_WAVES)
    stored = {name: RNG.normal(0, 1, (8, 8)).astype(np.float32) for name in "wv"}
    stored["speeds"] = (40.0 ** -np.arange(0, 1, 0.25)).astype(np.float32)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    net = load(model)
    data = [RNG.normal(0, 1, (2, n, 8)).astype(np.float32) for n in (6, 9)]
    quantized = quantize_model(net, data)
    assert not [op for op in quantized.report.floating if op.macs]
    far = np.tile(data[1], (1, 8, 1))
    assert verify(quantized, [far]).exact
    wanted = net(far).numpy()
    assert np.abs(quantized(far).numpy() - wanted).max() <= 0.05 * np.abs(wanted).max()
