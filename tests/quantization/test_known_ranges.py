"""Results of a known range (tanh, sigmoid, softmax) where the data spans a small part of it."""

import numpy as np
import onnx
import pytest

from megengine.convert.onnx import load
from megengine.core.dtype import quint8
from megengine.core.errors import QuantizationError
from megengine.plan import compile as compile_plan
from megengine.quantization import QuantConfig, RangeMethod, quantize_model, verify
from megengine.quantization.pipeline.freeze import where_it_changes
from megengine.quantization.pipeline.spec import Argument
from megengine.quantization.ranges import quantized_dtype, scheme
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from tests.helpers.quant_nets import Builder, run, sqnr


def _tail(op, small, *, layer):
    """A layer whose results are small, or far from the middle of a range, and a function of them."""
    b = Builder((2, 3, 8, 8))
    attrs = {"axis": 3} if op == "softmax" else {}
    y = b.conv(b.x, 4, bias=False, label="first")
    y = b.op("add", b.op("mul", y, b.g.constant(np.float32(small)), label="s"), b.g.constant(np.float32(0)), label="t")
    y = b.op(op, b.conv(y, 4, bias=False, label="narrow"), label="act", **attrs)
    return b, b.done(b.conv(y, 2, label="last") if layer else b.op("reshape", y, shape=(2, 256), label="flat"))


@pytest.mark.parametrize("op", ["tanh", "softmax"])
@pytest.mark.parametrize("profile", ["x86", "arm-dotprod", "tensorrt"])
def test_data_of_a_small_range_has_a_range_of_its_own(op, profile):
    b, graph = _tail(op, 1e-3, layer=True)
    model = quantize_model(graph, b.data(), QuantConfig(profile=profile))
    x = b.data(1, seed=4)[0]
    assert sqnr(run(graph, x)[0], run(model.integer_graph, x)[0]) > (28 if op == "tanh" else 40)
    assert verify(model, [x]).exact


def test_a_target_with_known_ranges_keeps_them():
    b, graph = _tail("softmax", 1e-3, layer=True)
    model = quantize_model(graph, b.data(), QuantConfig(profile="tflite"))
    assert model.frozen.edges["act"].scale == np.float32(1 / 256)


def test_data_that_fills_the_range_keeps_the_known_one():
    b, graph = _tail("softmax", 1.0, layer=True)
    assert quantize_model(graph, b.data()).frozen.edges["act"] == quint8(1 / 256)


@pytest.mark.parametrize("op", ["tanh", "softmax"])
def test_a_function_at_the_end_that_is_only_moved_stays_in_float(op):
    b, graph = _tail(op, 1e-3, layer=False)
    model = quantize_model(graph, b.data())
    assert {one.name for one in model.report.floating} == {"act"}
    x = b.data(1, seed=4)[0]
    assert sqnr(run(graph, x)[0], compile_plan(model.integer_graph)(x)[0]) > 28


def test_choices_follow_from_floats():
    """Distances to rows of a table: the nearest row is another one if distances are rounded to 8 bits."""
    b = Builder((64, 16))
    table = np.random.default_rng(3).normal(size=(32, 16)).astype(np.float32) + 4
    turned = {"transpose_a": False, "transpose_b": True}
    z = b.op("matmul", b.x, b.constant((16, 16), 0.3), label="z", **turned)
    z = b.op("add", z, b.g.constant(np.float32(4)), label="moved")
    near = b.op("matmul", z, b.g.constant(table), label="near", **turned)
    own = b.op("sum", b.op("mul", z, z), axis=(1,), keepdims=True)
    far = b.op("sub", own, b.op("mul", near, b.g.constant(np.float32(2))), label="far")
    far = b.op("add", far, b.g.constant(np.square(table).sum(1)), label="all")
    far = b.op("reshape", far, shape=(64, 32), label="flat")
    graph = b.done(b.op("argmin", far, axis=1, keepdims=False, label="which"))
    model = quantize_model(graph, b.data())
    x = b.data(1, seed=4)[0]
    assert (run(graph, x)[0] == run(model.integer_graph, x)[0]).mean() > 0.9


@pytest.mark.parametrize("choice", ["argmin", "topk", "greater"])
def test_products_from_which_choices_follow_are_float(choice):
    """Distances between computed points: in 8 bits the nearest point to each is not the point itself."""
    b = Builder((24, 16))
    turned = {"transpose_a": False, "transpose_b": True}
    z = b.op("matmul", b.x, b.constant((16, 4), 0.3), label="z", transpose_a=False, transpose_b=False)
    near = b.op("matmul", b.op("mul", z, b.g.constant(np.float32(-2))), z, label="near", **turned)
    own = b.op("sum", b.op("mul", z, z), axis=(1,), keepdims=False)
    far = b.op("add", near, b.op("reshape", own, shape=(24, 1)), label="far")
    far = b.op("add", far, b.op("reshape", own, shape=(1, 24)), label="all")
    if choice == "argmin":
        made = [b.op("argmin", far, axis=1, keepdims=False, label="which")]
    elif choice == "topk":
        made = b.op("topk", far, k=1, descending=False, label="which")  # the distances are results, too
    else:
        made = [b.op("greater", far, b.g.constant(np.float32(1e-3)), label="which")]
    graph = b.done(*made)
    model = quantize_model(graph, b.data())
    reasons = {one.name: one.reason for one in model.report.floating}
    assert reasons["near"] == "choices follow from it, which steps would change"
    integer = compile_plan(model.integer_graph)(b.data(1, seed=4)[0])
    got = np.argmin(integer[0], 1) if choice == "greater" else integer[-1]
    np.testing.assert_array_equal(np.ravel(got), np.arange(24))


_BODY = (
    "(int64 i, bool go, float[2,4] h) => (bool o, float[2,4] p) { o = Identity (go) q = MatMul (h, w) p = Tanh (q) }"
)
_LOOP = f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[2,4] x, int64 n) => (float[2,4] y) <float[4,4] w = {{{", ".join(["0.5"] * 16)}}}> {{
    t = Constant <value = bool {{1}}> ()
    y = Loop (n, t, x) <body = b {_BODY}>
}}"""


def test_layers_that_a_loop_runs_are_named_with_the_way_out():
    model, data = onnx.parser.parse_model(_LOOP), np.ones((2, 4), np.float32)
    match = r"1 layer with weights \(q\) that 'y' \(loop\) runs.*input_values=\{\.\.\.\}"
    with pytest.raises(QuantizationError, match=match):
        quantize_model(load(model), [(data, np.int64(3))])
    rounds = quantize_model(load(model, input_values={"n": 3}), [data])
    assert len(rounds.annotation.weights) == 3


def hswish(x):
    return x * np.clip(x + 3, 0, 6) / 6


@pytest.mark.parametrize("highest", np.linspace(4, 40, 19))
def test_the_lowest_argument_gives_what_all_below_it_give(highest):
    """Rounding the zero point moves the ends: at -2.86 hswish is half a step of its results away from 0."""
    argument = Argument("u8_asymmetric", RangeMethod(), function=hswish)
    lo, hi = where_it_changes(argument, -14.0, float(highest))
    dtype = quantized_dtype(lo, hi, scheme("u8_asymmetric"))
    least = (dtype.qmin - dtype.zero_point) * dtype.only_scale
    assert -14 < lo < -2.9
    assert abs(hswish(least)) < 0.3 * (highest + 0.375) / 255


@pytest.mark.parametrize(("offsets", "ends"), [((3, 3, 3, 3), True), ((3, 3, 500, 3), False)])
def test_an_argument_ends_where_the_functions_of_all_channels_end(offsets, ends):
    """x * relu6(x + offset) + shift, of each channel: below -3 nothing changes, but in a channel with 500."""
    b = Builder((2, 3, 16, 16))
    offsets, shifts = (np.float32(v).reshape(1, 4, 1, 1) for v in (offsets, (5, -1, 2, 0)))
    wide = b.op("mul", b.conv(b.x, 4, label="first"), b.g.constant(np.float32(20)), label="wide")
    x = b.conv(wide, 4, label="narrow")
    gate = b.op("relu6", b.op("add", x, b.g.constant(offsets), label="t"), label="gate")
    y = b.op("add", b.op("mul", x, gate, label="swish"), b.g.constant(shifts), label="act")
    graph, data = b.done(b.conv(y, 2, label="last")), b.data(4)
    model = quantize_model(graph, data, QuantConfig(bias_correction=False))
    dtype, seen = model.frozen.edges["narrow"], model.stats["narrow"].minimum
    least = (dtype.qmin - dtype.zero_point) * dtype.only_scale
    assert seen < -60
    assert (least > 0.1 * seen) if ends else least < 0.5 * seen
    if ends:  # all that is cut gives what the end gives, to a part of a step of the results
        assert abs(least * np.clip(least + 3, 0, 6)) < 0.3 * model.frozen.edges["act"].only_scale
    assert verify(model, data[:1]).exact


def test_ranges_leave_the_least_squared_error_by_default():
    b = Builder((2, 3, 64, 64))
    graph, data = b.done(b.conv(b.relu(b.conv(b.x, 4, label="first"), "act"), 4, label="last")), b.data(8)
    data[3][0, 0, 5, 5] = 30.0
    least, whole = (
        squared_errors(quantize_model(graph, data, config), data)
        for config in (None, QuantConfig(activations=RangeMethod("minmax")))
    )
    assert all(least[name] <= 1.02 * whole[name] for name in whole)
    assert least["x"] < 0.9 * whole["x"]


def squared_errors(model, data):
    """What rounding each integer edge of the float network adds, in float64."""
    errors = dict.fromkeys(model.frozen.edges, 0.0)

    def add(node, value):
        if (dtype := model.frozen.edges.get(node.name)) is not None:
            x, scale, zero = value.numpy().astype(np.float64), float(dtype.only_scale), dtype.zero_point
            kept = np.clip(np.rint(x / scale), dtype.qmin - zero, dtype.qmax - zero) * scale
            errors[node.name] += np.square(kept - x).sum()

    for x in data:
        add(model.float_graph.inputs[0], Tensor(x))
        interpret(model.float_graph, [x], on_value=add)
    return errors
