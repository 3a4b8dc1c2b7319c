"""Import rules of arithmetic that is more than one op, or whose form changed between opsets."""

import math

import numpy as np

from megengine.convert.onnx.context import Call, Value, rule, spec_of
from megengine.core.dtype import QuantizedDType, quantized, storage_of
from megengine.core.errors import brief
from megengine.core.text import counted


@rule("Clip")
def clip(call: Call) -> Value:
    """Bounds are attributes before opset 11 and optional inputs since."""
    x = call.input(0)
    if call.opset < 11:
        low, high = call.attr("min"), call.attr("max")
    else:
        low, high = _number(call, 1, "min"), _number(call, 2, "max")
    if low == 0.0 and high == 6.0:
        return call.apply("relu6", x)
    if low is None and high is None:
        return x
    if low == 0.0 and (high is None or high >= np.finfo(np.float32).max):
        return call.apply("relu", x)
    return call.apply(
        "clip", x, lo=-math.inf if low is None else float(low), hi=math.inf if high is None else float(high)
    )


def _number(call: Call, index: int, what: str) -> float | None:
    value = call.const(index, what)
    if value is None:
        return None
    if value.size != 1:
        raise call.fail(f"its {what} has shape {value.shape}; expected one number")
    return value.reshape(-1)[0].item()


@rule("HardSigmoid")
def hard_sigmoid(call: Call) -> Value:
    """max(0, min(1, alpha * x + beta)); alpha = 1/6, beta = 1/2 is our hsigmoid."""
    x = call.input(0)
    alpha, beta = float(call.attr("alpha", 0.2)), float(call.attr("beta", 0.5))
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return call.apply("hsigmoid", x)
    return call.apply("clip", call.apply("add", call.apply("mul", x, alpha), beta), lo=0.0, hi=1.0)


@rule("PRelu")
def prelu(call: Call) -> Value:
    """A slope that is one constant is LeakyRelu; otherwise max(x, 0) + slope * min(x, 0)."""
    x, slope = call.input(0), call.input(1)
    if isinstance(slope, np.ndarray) and slope.size == 1:
        return call.apply("leaky_relu", x, slope=float(slope.reshape(-1)[0]))
    negative = call.apply("mul", call.apply("minimum", x, 0.0), slope)
    return call.apply("add", call.apply("relu", x), negative)


@rule("Elu")
def elu(call: Call) -> Value:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
    x = call.input(0)
    tail = call.apply("sub", call.apply("exp", call.apply("minimum", x, 0.0)), 1.0)
    return call.apply("add", call.apply("relu", x), call.apply("mul", tail, float(call.attr("alpha", 1.0))))


@rule("Add", "Div", "Pow")
def arithmetic(call: Call) -> Value:
    """Broadcasting as NumPy; Pow by 2 and by 1/2 are square and sqrt; integers divide truncating."""
    op = call.op_type.lower()
    a, b = call.input(0), call.input(1)
    if op == "div" and storage_of(spec_of(a).dtype).kind in "iu":
        raise call.fail("division of integers at run time is not supported; expected floating-point inputs")
    if op == "pow" and isinstance(b, np.ndarray) and b.size == 1 and len(b.shape) <= len(call.shape(a)):
        exponent = float(b.reshape(-1)[0])
        if exponent in (0.5, 2.0):
            return call.apply("sqrt" if exponent == 0.5 else "square", a)
        return call.apply("pow", a, exponent)
    if op == "pow" and isinstance(b, np.ndarray):
        b = b.astype(storage_of(spec_of(a).dtype))  # the exponent may have a type of its own
    return call.apply(op, a, b)


@rule("Min", "Max", "Sum", "Mean")
def variadic(call: Call) -> Value:
    """Any number of inputs, one after the other."""
    op = {"Min": "minimum", "Max": "maximum"}.get(call.op_type, "add")
    y = call.input(0)
    for index in range(1, len(call.inputs)):
        y = call.apply(op, y, call.input(index))
    if call.op_type == "Mean" and len(call.inputs) > 1:
        y = call.apply("mul", y, 1.0 / len(call.inputs))
    return y


@rule("Reciprocal")
def reciprocal(call: Call) -> Value:
    """1 / x."""
    one = np.ones((), np.float32)
    return call.apply("div", one, call.input(0))


@rule("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
def reduce(call: Call) -> Value:
    """Axes are an attribute in old opsets and an input in new ones; none means all."""
    x = call.input(0)
    rank = len(call.shape(x))
    axes = call.ints("axes") if "axes" in call.attrs else call.const_ints(1, "axes")
    if not axes:
        if call.attr("noop_with_empty_axes", 0):
            return x
        axes = tuple(range(rank))
    wanted = tuple(sorted({call.axis(axis, rank) for axis in axes}))
    op = call.op_type.removeprefix("Reduce").lower()
    return call.apply(op, x, axis=wanted, keepdims=bool(call.attr("keepdims", 1)))


@rule("ArgMax", "ArgMin")
def arg_reduce(call: Call) -> Value:
    """The first extreme value along one axis."""
    x = call.input(0)
    if call.attr("select_last_index", 0):
        raise call.fail("select_last_index=1 is not supported")
    axis = call.axis(int(call.attr("axis", 0)), len(call.shape(x)))
    return call.apply(call.op_type.lower(), x, axis=axis, keepdims=bool(call.attr("keepdims", 1)))


@rule("Gelu")
def gelu(call: Call) -> Value:
    """The exact form; the tanh form is spelled out."""
    x = call.input(0)
    if call.attr("approximate", "none") == "none":
        return call.apply("gelu", x)
    cube = call.apply("mul", call.apply("mul", x, x), x)
    inner = call.apply("add", x, call.apply("mul", cube, 0.044715))
    half = call.apply("add", call.apply("tanh", call.apply("mul", inner, math.sqrt(2 / math.pi))), 1.0)
    return call.apply("mul", call.apply("mul", x, half), 0.5)


@rule("QuantizeLinear", "DequantizeLinear")
def quantization(call: Call) -> Value:
    """Quantization with constant scale and zero point, per tensor or along one axis."""
    x, scale = call.input(0), call.const(1, "scale")
    zero = call.const(2, "zero point")
    if scale is None:
        raise call.fail("its scale is missing")
    narrow = scale.astype(np.float32)
    if not narrow.size or not np.all(np.isfinite(narrow) & (narrow >= np.finfo(np.float32).tiny)):
        raise call.fail(f"its scale is {brief(scale.reshape(-1).tolist())}; expected positive, normal, finite numbers")
    if call.op_type == "DequantizeLinear":
        if isinstance(x, np.ndarray):
            return _stored_integers(call, x, scale, zero)
        if not isinstance(x.dtype, QuantizedDType):
            raise call.fail("its input is no quantized tensor; expected the output of a QuantizeLinear")
        own = (x.dtype.scale, x.dtype.zero_point)
        if scale.size != 1 or (float(narrow.reshape(-1)[0]), 0 if zero is None else int(zero.reshape(-1)[0])) != own:
            raise call.fail(f"its scale or zero point is not that of its input, {x.dtype}; expected the same")
        return call.apply("dequantize", x)
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    if zero.dtype not in (np.uint8, np.int8):
        raise call.fail(f"quantizes to {zero.dtype}; expected int8 or uint8")
    if scale.size != 1 or np.unique(zero).size != 1:
        raise call.fail("scales per channel of an activation are not supported")
    name = "qint8" if zero.dtype == np.int8 else "quint8"
    dtype = quantized(name, float(np.float32(scale.reshape(-1)[0])), int(zero.reshape(-1)[0]))
    return call.apply("quantize", x, dtype=dtype)


def _stored_integers(call: Call, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None) -> Value:
    """Stored 8-bit weights stay integers with their scales; others (biases) become the floats they stand for."""
    axis = None
    if scale.size != 1:
        axis = call.axis(int(call.attr("axis", 1)), x.ndim)
        if scale.size != x.shape[axis]:
            raise call.fail(
                f"{counted(scale.size, 'scale')} for an axis of {x.shape[axis]}; blocked scales are not supported"
            )
    offset = np.zeros(1, np.int32) if zero is None else zero.astype(np.int32).reshape(-1)
    if x.dtype in (np.int8, np.uint8) and np.unique(offset).size == 1:
        name = "qint8" if x.dtype == np.int8 else "quint8"
        flat = scale.reshape(-1)
        dtype = quantized(name, flat if axis is not None else float(flat[0]), int(offset[0]), axis)
        return call.apply("dequantize", call.integers(x, dtype))
    along = [1] * x.ndim
    if axis is not None:
        along[axis] = scale.size
    shift = offset.reshape(along if offset.size > 1 else (1,) * x.ndim)
    factor = scale.astype(np.float32).reshape(along)
    return ((x.astype(np.int32) - shift).astype(np.float32) * factor).astype(np.float32)
