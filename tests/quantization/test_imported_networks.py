"""Files that ONNX Runtime quantized, as integer networks: its values."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from megengine import plan
from megengine.convert.onnx import export, load
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import QuantizationError
from megengine.quantization import integer_network, quantize_model, verify
from megengine.quantization.checks import integer_form
from tests.helpers.onnx_runtime import session_of

runtime = pytest.importorskip("onnxruntime")
tools = pytest.importorskip("onnxruntime.quantization")
UINT8, INT8 = tools.QuantType.QUInt8, tools.QuantType.QInt8
SHAPE = (1, 3, 12, 12)


def data(count, first=0):
    return [np.random.default_rng(first + i).standard_normal(SHAPE).astype(np.float32) for i in range(count)]


class Reader(tools.CalibrationDataReader):
    def __init__(self):
        self.left = iter(data(6))

    def get_next(self):
        return next(({"x": x} for x in self.left), None)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file of a network with a residual sum, gate, pools and a classifier."""
    rng, nodes = np.random.default_rng(3), []
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 1, 3, 3), "b2": (8,), "w3": (8, 8, 1, 1), "b3": (8,)}
    shapes |= {"w4": (5, 8), "b4": (5,)}
    weights = [numpy_helper.from_array((rng.standard_normal(s) * 0.3).astype(np.float32), n) for n, s in shapes.items()]

    def node(op, inputs, output, **attrs):
        nodes.append(helper.make_node(op, inputs.split(), [output], name=output, **attrs))

    node("Conv", "x w1 b1", "c1", kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2])
    node("Relu", "c1", "r1")
    node("Conv", "r1 w2 b2", "c2", kernel_shape=[3, 3], pads=[1] * 4, group=8)
    node("Sigmoid", "c2", "s2")
    node("Mul", "c2 s2", "m2")
    node("Conv", "m2 w3 b3", "c3")
    node("Add", "c3 r1", "a")
    node("MaxPool", "a", "p", kernel_shape=[2, 2], strides=[2, 2])
    node("GlobalAveragePool", "p", "g")
    node("Flatten", "g", "f")
    node("Gemm", "f w4 b4", "y", transB=1)
    ends = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", SHAPE), ("y", (1, 5)))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    path = tmp_path_factory.mktemp("files") / "float.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def quantized(source, tmp_path, form, activation, weight, *, per_channel):
    path = tmp_path / "quantized.onnx"
    options = {"activation_type": activation, "weight_type": weight, "per_channel": per_channel}
    tools.quantize_static(source, path, Reader(), quant_format=tools.QuantFormat[form], **options)
    return path


def answers(path, xs, *, optimized):
    levels = runtime.GraphOptimizationLevel
    level = levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    session = session_of(path, intra_op_num_threads=1, graph_optimization_level=level)
    return np.stack([session.run(None, {"x": x})[0] for x in xs])


def ops_of(net):
    return [e for e in net.graph.exprs() if hasattr(e, "op")]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("activation", [UINT8, INT8])
@pytest.mark.parametrize("form", ["QOperator", "QDQ"])
def test_integers_are_those_of_the_runtime(source, tmp_path, form, activation, per_channel):
    path = quantized(source, tmp_path, form, activation, INT8, per_channel=per_channel)
    net, xs = load(path), data(8, first=50)
    assert integer_form(net.graph) == "qdq"
    integers = integer_network(net)
    in_float = [
        e for e in ops_of(integers) if not any(isinstance(n.dtype, QuantizedDType) for n in (*e.inputs, *e.outputs))
    ]
    assert in_float == []
    compiled = plan.compile(integers)
    got = np.stack([compiled(x)[0] for x in xs])
    # products of uint8 that do not saturate are the optimiser's choice
    wanted = answers(path, xs, optimized=form == "QDQ" or activation == UINT8)
    step = next(e.inputs[0].dtype.scale for e in ops_of(integers) if e.op == "dequantize")
    steps = np.round(np.abs(got - wanted) / step)
    # QDQ: the runtime rounds branches of a sum and a gate that the integer ops keep exact
    assert steps.max() <= (0 if form == "QOperator" else 1)
    assert verify(integers, xs[:2], threads=(1,)).exact
    again = integer_network(integers)
    assert [e.op for e in ops_of(again)] == [e.op for e in ops_of(integers)]


def test_weights_of_nine_bits_stay_in_float(source, tmp_path):
    path = quantized(source, tmp_path, "QOperator", UINT8, UINT8, per_channel=False)
    net, xs = load(path), data(4, first=70)
    wanted = answers(path, xs, optimized=False)
    for model in (net, integer_network(net)):
        got = np.stack([model(x).numpy() for x in xs])
        np.testing.assert_allclose(got, wanted, atol=0.02 * np.abs(wanted).max())
    assert "ordered_conv2d" in {e.op for e in ops_of(integer_network(net))}


def test_unsigned_weights_that_fit_are_integers(source, tmp_path):
    path = quantized(source, tmp_path, "QDQ", UINT8, INT8, per_channel=False)
    model = onnx.load(path)
    for tensor in model.graph.initializer:  # the same weights, stored with a zero point of 128
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.int8:
            tensor.CopyFrom(numpy_helper.from_array((value.astype(np.int16) + 128).astype(np.uint8), tensor.name))
    got, wanted = (integer_network(load(m)) for m in (model, onnx.load(path)))
    assert [e.op for e in ops_of(got)] == [e.op for e in ops_of(wanted)]
    for x in data(2, first=90):
        np.testing.assert_array_equal(got(x).numpy(), wanted(x).numpy())


def test_dynamic_ranges_are_those_of_the_runtime(source, tmp_path):
    path = tmp_path / "dynamic.onnx"
    tools.quantize_dynamic(source, path, weight_type=UINT8)
    net, xs = load(path), data(4, first=20)
    got, wanted = np.stack([net(x).numpy() for x in xs]), answers(path, xs, optimized=False)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weights", [INT8, UINT8])
def test_files_with_dynamic_ranges_become_integer_networks(source, tmp_path, weights):
    """Read as real values, whose range calibration finds, between layers with the stored weights."""
    path = tmp_path / "dynamic.onnx"
    tools.quantize_dynamic(source, path, weight_type=weights)
    net, xs = load(path, dynamic=False), data(6, first=20)
    floats, dynamic = answers(source, xs, optimized=False), answers(path, xs, optimized=False)
    noise = np.abs(dynamic - floats).max()
    assert 0 < np.abs(np.stack([net(x).numpy() for x in xs]) - floats).max() <= 2 * noise  # weights keep their steps
    made = quantize_model(net, xs)
    assert made.report.integer_layers == 4 and verify(made, xs[:1], threads=(1,)).exact
    assert np.abs(np.stack([made(x).numpy() for x in xs]) - floats).max() < 0.05 * np.abs(floats).max()


def test_lstm_with_dynamic_ranges_is_read_as_real_values(tmp_path):
    rng = np.random.default_rng(2)
    weights = {"w": (2, 24, 5), "r": (2, 24, 6), "b": (2, 48)}
    stored = [numpy_helper.from_array((rng.normal(size=s) * 0.4).astype(np.float32), n) for n, s in weights.items()]
    lstm = helper.make_node("LSTM", ["x", "w", "r", "b"], ["y"], "lstm", hidden_size=6, direction="bidirectional")
    ends = [helper.make_tensor_value_info("x", 1, ["length", 2, 5]), helper.make_tensor_value_info("y", 1, None)]
    graph = helper.make_graph([lstm], "net", ends[:1], ends[1:], stored)
    source, path = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    tools.quantize_dynamic(source, path, weight_type=INT8)
    net, xs = load(path, dynamic=False), [rng.normal(size=(7, 2, 5)).astype(np.float32) for _ in range(4)]
    floats = answers(source, xs, optimized=False)
    for model, most in ((net, 0.02), (quantize_model(net, xs), 0.04)):
        assert np.abs(np.stack([model(x).numpy() for x in xs]) - floats).max() < most


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_integers_by_the_range_at_hand_are_the_runtimes(spread):
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[n,5] x) => (uint8[n,5] q, float s, uint8 z) '
        "{ q, s, z = DynamicQuantizeLinear (x) }"
    )
    x = (spread * np.random.default_rng(0).normal(2, 1, (4, 5))).astype(np.float32)
    wanted = session_of(model).run(None, {"x": x})
    for got, want in zip(load(model)(x), wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize(
    "body",
    [
        "y = MatMul (w, x_r)",
        "y = Add (w, x_r)",
        "q_w = QuantizeLinear (w, s, z) w_r = DequantizeLinear (q_w, s, z) y = Add (w_r, x_r)",
    ],
    ids=["left factor", "term", "quantized again"],
)
def test_constants_with_a_scale_for_each_channel_that_are_no_weights(body):
    """Such a constant stays real where an op takes one scale."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[4,4] x) => (float[4,4] y_r)'
        "<float s = {0.05}, int8 z = {3}, float[4] t = {0.01, 0.02, 0.03, 0.015}, int8[4] n = {0, 0, 0, 0}, "
        "int8[4,4] c = {5, -7, 99, 3, 12, 88, -120, 4, 5, 6, 7, 8, -9, 10, 11, 90}> "
        "{ w = DequantizeLinear <axis = 1> (c, t, n) "
        f"q_x = QuantizeLinear (x, s, z) x_r = DequantizeLinear (q_x, s, z) {body} "
        "q_y = QuantizeLinear (y, s, z) y_r = DequantizeLinear (q_y, s, z) }"
    )
    x = np.random.default_rng(0).normal(0, 1, (4, 4)).astype(np.float32)
    net = integer_network(load(model))
    (want,) = session_of(model).run(None, {"x": x})
    for got in (net(x).numpy(), plan.compile(net)(x)[0]):
        np.testing.assert_allclose(got, want, atol=0.051)


PAIR = "q_{0} = QuantizeLinear ({0}, s, z) {0}_r = DequantizeLinear (q_{0}, s, z) "
APART = {
    "one axis": "t = Unsqueeze (w_r, last) y = Conv (x_r, t)",
    "turned weight": "t = Transpose <perm = [1, 0]> (w_r) y = MatMul (x_r, t)",
    "turned back": "t = Transpose <perm = [1, 0]> (w_r) a = MatMul (x_r, t) b = Add (a, c) "
    "d = Reshape (b, heads) y = Transpose <perm = [0, 2, 1, 3]> (d)",
    "split and joined": "t = Transpose <perm = [1, 0]> (w_r) a, b = Split <axis = 1> (x_r) "
    "d = Concat <axis = 1> (b, a) y = MatMul (d, t)",
}


@pytest.mark.parametrize("name", APART)
def test_moves_between_a_layer_and_its_pairs(name):
    """A file may have them on either side of a layer, and between a weight and its scales."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[1,4,4] x) => (float[k,l,m,n] y_r)'
        "<float s = {0.03}, uint8 z = {120}, float[6] t_w = {0.01, 0.02, 0.03, 0.015, 0.01, 0.02}, "
        "int8[6] n = {0, 0, 0, 0, 0, 0}, float[6] c = {1, 0, -1, 0.5, 0, 0.2}, "
        "int64[1] last = {2}, int64[4] heads = {0, 0, 2, 3}, int8[6,4] w = {5, -7, 99, 3, 12, 88, -120, 4, 5, 6, 7, 8, "
        "-9, 10, 11, 90, 1, 2, 3, 4, 50, -60, 70, -80}> "
        f"{{ w_r = DequantizeLinear <axis = 0> (w, t_w, n) {PAIR.format('x')} {APART[name]} {PAIR.format('y')} }}"
    )
    net = integer_network(load(model))
    assert [e.op for e in ops_of(net) if e.op.startswith("ordered")] == []
    assert sum(e.op in ("qlinear", "qconv2d") for e in ops_of(net)) == 1
    x = np.random.default_rng(0).normal(0, 1, (1, 4, 4)).astype(np.float32)
    (want,) = answers_of(model, x)
    for got in (net(x).numpy(), plan.compile(net)(x)[0]):
        np.testing.assert_allclose(got, want, atol=0.031)
    assert verify(net, [x], threads=(1,)).exact


def answers_of(model, x):
    return session_of(model, graph_optimization_level=runtime.GraphOptimizationLevel.ORT_DISABLE_ALL).run(
        None, {"x": x}
    )


def test_a_network_whose_layers_all_stay_in_float_is_verified(source, tmp_path):
    """Sums of float layers between pairs have one order, where no layer is one of integers, too."""
    path = quantized(source, tmp_path, "QDQ", UINT8, UINT8, per_channel=False)
    model = onnx.load(path)
    del model.graph.output[:]
    made = next(n for n in model.graph.node if n.op_type == "DequantizeLinear" and n.input[0].startswith("r1"))
    model.graph.output.append(helper.make_tensor_value_info(made.output[0], 1, None))
    net = integer_network(load(model))
    assert [e.op for e in ops_of(net) if e.op.endswith("conv2d")] == ["ordered_conv2d"]
    assert verify(net, data(1), threads=(1,)).exact


@pytest.mark.parametrize(
    "body",
    [
        "y = com.microsoft.QLinearWhere (mask, q, s, z, p, t, n, v, u)",
        "y = Resize <mode = 'linear'> (q, , scales)",
    ],
    ids=["where", "linear"],
)
def test_operators_of_stored_integers(body):
    """The runtime cuts the fraction off where it resizes integers."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> net (float[1,1,4,5] x) => (uint8[k,l,m,n] y)'
        "<float s = {0.03}, uint8 z = {120}, float t = {0.05}, uint8 n = {3}, float v = {0.04}, uint8 u = {90}, "
        "float[4] scales = {1, 1, 2, 1}, bool[5] mask = {1, 0, 0, 1, 0}> "
        "{ q = QuantizeLinear (x, s, z) p = QuantizeLinear (x, t, n) " + body.replace("'", '"') + " }"
    )
    x = np.random.default_rng(0).normal(0, 1, (1, 1, 4, 5)).astype(np.float32)
    (want,) = answers_of(model, x)
    got = load(model)(x).numpy()
    assert got.shape == want.shape
    assert np.abs(got.astype(int) - want).max() <= 1


INT16, UINT16 = tools.QuantType.QInt16, tools.QuantType.QUInt16


@pytest.mark.parametrize("weight", [INT8, INT16])
def test_files_with_values_of_16_bits(source, tmp_path, weight):
    path = quantized(source, tmp_path, "QDQ", INT16, weight, per_channel=False)
    xs = data(2, first=60)
    wanted = answers(path, xs, optimized=False)
    for model in (load(path), integer_network(load(path))):
        np.testing.assert_allclose(np.stack([model(x).numpy() for x in xs]), wanted, atol=1e-3 * np.abs(wanted).max())
    layers = sum(e.op in ("qconv2d", "qlinear") for e in ops_of(model))
    assert layers == (4 if weight == INT8 else 0)
    assert verify(model, xs[:1], threads=(1,)).exact
    export(model, tmp_path / "integers.onnx")  # zero points of 16 bits are split in two, as the values are
    got = answers(tmp_path / "integers.onnx", xs, optimized=False)
    np.testing.assert_allclose(got, np.stack([model(x).numpy() for x in xs]), atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("layer", "shape", "axis", "integer"),
    [
        ("MatMul (u, v)", (8, 8), 0, False),
        ("MatMul (u, v)", (8, 8), -1, True),
        ("Gemm <transB = 1> (u, v)", (8, 8), 1, False),
        ("Conv (u, v)", (8, 8, 3, 3), 1, False),
        ("Conv <group = 2> (u, v)", (8, 4, 3, 3), 0, True),
        ("Conv (u, v)", (8, 8, 3), 1, False),
        ("ConvTranspose (u, v)", (8, 8, 2, 2), 0, False),
        ("ConvTranspose (u, v)", (8, 8, 2, 2), 1, True),
        ("ConvTranspose <group = 2> (u, v)", (8, 4, 2, 2), 1, False),
    ],
)
def test_scales_along_an_axis_that_is_summed_leave_a_layer_in_float(layer, shape, axis, integer):
    """Integers are summed with one scale for each channel of the result; squares have both axes of one length."""
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, {2: (3, 8), 3: (1, 8, 6), 4: (1, 8, 6, 6)}[len(shape)]).astype(np.float32)
    stored = {"w": rng.integers(-127, 128, shape).astype(np.int8)}
    stored["s"] = (0.02 * np.exp(rng.normal(0, 1, shape[axis]))).astype(np.float32)
    sizes = ",".join(map(str, x.shape))
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> net (float[{sizes}] x) => (float[{",".join("abcd"[: x.ndim])}] y)'
        "<float c = {0.03}, uint8 z = {120}, float d = {0.8}, uint8 m = {128}> {"
        "p = QuantizeLinear (x, c, z) u = DequantizeLinear (p, c, z)"
        f"v = DequantizeLinear <axis = {axis % len(shape)}> (w, s) t = {layer}"
        "q = QuantizeLinear (t, d, m) y = DequantizeLinear (q, d, m) }"
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in stored.items())
    net = integer_network(load(model))
    (want,) = answers_of(model, x)
    np.testing.assert_array_equal(net(x).numpy(), want)
    assert any(e.op in ("qconv2d", "qlinear") for e in ops_of(net)) == integer


def test_values_of_uint16_become_integers(source, tmp_path):
    path = quantized(source, tmp_path, "QDQ", UINT16, INT8, per_channel=False)
    net, xs = integer_network(load(path)), data(2)
    assert verify(net, xs, threads=(1,)).exact
    wanted = answers(path, xs, optimized=False)
    np.testing.assert_allclose(np.stack([net(x).numpy() for x in xs]), wanted, atol=1e-3 * np.abs(wanted).max())


def test_values_of_several_scales_are_refused_in_agreement():
    """Both ways to integers name the same way out, and the network runs as it is."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> net (float[2,4] x) => (float[2,4] y)'
        "<float[4] s = {0.05, 0.02, 0.03, 0.04}, uint8[4] z = {3, 128, 128, 128}, float t = {0.01}, int8 n = {0}, "
        "int8[4,4] c = {5, -7, 99, 3, 12, 88, -120, 4, 5, 6, 7, 8, -9, 10, 11, 90}> "
        "{ q = QuantizeLinear <axis = 1> (x, s, z) d = DequantizeLinear <axis = 1> (q, s, z) "
        "w = DequantizeLinear (c, t, n) y = MatMul (d, w) }"
    )
    net, x = load(model), np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    what = r"several scales.*It runs as it is; .*the float network that it was made from"
    with pytest.raises(QuantizationError, match=what):
        integer_network(net)
    with pytest.raises(QuantizationError, match="quantized already.*take the float network that it was made from"):
        quantize_model(net, [x])
    (wanted,) = answers_of(model, x)
    np.testing.assert_allclose(net(x).numpy(), wanted, rtol=1e-6)


def test_a_float_network_is_refused(source):
    with pytest.raises(QuantizationError, match="has no quantize / dequantize pairs around its layers"):
        integer_network(load(source))
