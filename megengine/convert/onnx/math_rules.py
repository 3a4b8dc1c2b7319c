"""Import rules of arithmetic that is more than one op, or whose form changed between opsets."""

import math
from typing import Any

import numpy as np

from megengine.convert.onnx.context import OnnxNode, Value, rule, spec_of
from megengine.core.dtype import QuantizedDType, is_float, quantized, storage_of
from megengine.core.errors import brief
from megengine.core.text import counted
from megengine.traced_module.ir.node import TensorNode


@rule("Clip")
def clip(node: OnnxNode, x: Value) -> Value:
    """Bounds are attributes before opset 11 and optional inputs since; integers are compared as such."""
    bounds: list[Any] = (
        [node.attr("min"), node.attr("max")] if node.opset < 11 else [node.optional(1), node.optional(2)]
    )
    if is_float(spec_of(x).dtype) and not any(isinstance(bound, TensorNode) for bound in bounds):
        low, high = (None if bound is None else _number(node, bound) for bound in bounds)
        return _clipped(node, x, low, high)
    for op, bound in zip(("maximum", "minimum"), bounds, strict=True):
        x = x if bound is None else node.apply(op, x, bound)
    return x


def _number(node: OnnxNode, bound: np.ndarray | float) -> float:
    if np.size(bound) != 1:
        raise node.fail(f"a bound has shape {np.shape(bound)}; expected one number")
    return float(np.reshape(bound, -1)[0])


def _clipped(node: OnnxNode, x: Value, low: float | None, high: float | None) -> Value:
    if low == 0.0 and high == 6.0:
        return node.apply("relu6", x)
    if low is None and high is None:
        return x
    if low == 0.0 and (high is None or high >= np.finfo(np.float32).max):
        return node.apply("relu", x)
    return node.apply("clip", x, lo=-math.inf if low is None else low, hi=math.inf if high is None else high)


@rule("HardSigmoid")
def hard_sigmoid(node: OnnxNode, x: Value) -> Value:
    """max(0, min(1, alpha * x + beta)); alpha = 1/6, beta = 1/2 is our hsigmoid."""
    alpha, beta = float(node.attr("alpha", 0.2)), float(node.attr("beta", 0.5))
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return node.apply("hsigmoid", x)
    return node.apply("clip", node.apply("add", node.apply("mul", x, alpha), beta), lo=0.0, hi=1.0)


@rule("PRelu")
def prelu(node: OnnxNode, x: Value, slope: Value) -> Value:
    """A slope that is one constant is LeakyRelu; otherwise max(x, 0) + slope * min(x, 0)."""
    if isinstance(slope, np.ndarray) and slope.size == 1:
        return node.apply("leaky_relu", x, slope=float(slope.reshape(-1)[0]))
    negative = node.apply("mul", node.apply("minimum", x, 0.0), slope)
    return node.apply("add", node.apply("relu", x), negative)


@rule("Elu")
def elu(node: OnnxNode, x: Value) -> Value:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1)."""
    tail = node.apply("sub", node.apply("exp", node.apply("minimum", x, 0.0)), 1.0)
    return node.apply("add", node.apply("relu", x), node.apply("mul", tail, float(node.attr("alpha", 1.0))))


@rule("Add", "Div", "Pow")
def arithmetic(node: OnnxNode, a: Value, b: Value) -> Value:
    """Broadcasting as NumPy; Pow by 2 and by 1/2 are square and sqrt; integers divide truncating."""
    op = node.op_type.lower()
    if op == "div" and storage_of(spec_of(a).dtype).kind in "iu":
        raise node.fail("division of integers at run time is not supported; expected floating-point inputs")
    if op == "pow" and isinstance(b, np.ndarray) and b.size == 1 and len(b.shape) <= len(a.shape):
        exponent = float(b.reshape(-1)[0])
        if exponent in (0.5, 2.0):
            return node.apply("sqrt" if exponent == 0.5 else "square", a)
        return node.apply("pow", a, exponent)
    if op == "pow" and isinstance(b, np.ndarray):
        b = b.astype(storage_of(spec_of(a).dtype))  # the exponent may have a type of its own
    return node.apply(op, a, b)


@rule("Min", "Max", "Sum", "Mean")
def variadic(node: OnnxNode, y: Value, *more: Value) -> Value:
    """Any number of inputs, one after the other."""
    op = {"Min": "minimum", "Max": "maximum"}.get(node.op_type, "add")
    for value in more:
        y = node.apply(op, y, value)
    return node.apply("mul", y, 1.0 / (1 + len(more))) if node.op_type == "Mean" and more else y


@rule("Reciprocal")
def reciprocal(node: OnnxNode, x: Value) -> Value:
    """1 / x."""
    return node.apply("div", np.ones((), np.float32), x)


@rule("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
def reduce(node: OnnxNode, x: Value) -> Value:
    """Axes are an attribute in old opsets and an input in new ones; none means all."""
    rank = len(x.shape)
    axes = node.ints("axes") if "axes" in node.attrs else node.const_ints(1, "axes")
    if not axes:
        if node.attr("noop_with_empty_axes", 0):
            return x
        axes = tuple(range(rank))
    wanted = tuple(sorted({node.axis(axis, rank) for axis in axes}))
    op = node.op_type.removeprefix("Reduce").lower()
    return node.apply(op, x, axis=wanted, keepdims=bool(node.attr("keepdims", 1)))


@rule("ArgMax", "ArgMin")
def arg_reduce(node: OnnxNode, x: Value) -> Value:
    """The place of the first extreme value along an axis, or of the last one: the first one from the end."""
    shape = x.shape
    axis, last = node.axis(int(node.attr("axis", 0)), len(shape)), bool(node.attr("select_last_index", 0))
    if last:
        steps = [-1 if a == axis else 1 for a in range(len(shape))]
        x = node.apply("slice", x, starts=(None,) * len(shape), stops=(None,) * len(shape), steps=tuple(steps))
    y = node.apply(node.op_type.lower(), x, axis=axis, keepdims=bool(node.attr("keepdims", 1)))
    y = node.cast(y, np.int64)
    return node.apply("sub", np.asarray(shape[axis] - 1, np.int64), y) if last else y


@rule("Gelu")
def gelu(node: OnnxNode, x: Value) -> Value:
    """The exact form; the tanh form is spelled out."""
    if node.attr("approximate", "none") == "none":
        return node.apply("gelu", x)
    cube = node.apply("mul", node.apply("mul", x, x), x)
    inner = node.apply("add", x, node.apply("mul", cube, 0.044715))
    half = node.apply("add", node.apply("tanh", node.apply("mul", inner, math.sqrt(2 / math.pi))), 1.0)
    return node.apply("mul", node.apply("mul", x, half), 0.5)


@rule("QuantizeLinear", "DequantizeLinear")
def quantization(node: OnnxNode, x: Value) -> Value:
    """Quantization with constant scale and zero point, per tensor or along one axis."""
    scale, zero = node.const(1, "scale"), node.const(2, "zero point")
    if scale is None:
        raise node.fail("its scale is missing")
    narrow = scale.astype(np.float32)
    if not narrow.size or not np.all(np.isfinite(narrow) & (narrow >= np.finfo(np.float32).tiny)):
        raise node.fail(f"its scale is {brief(scale.reshape(-1).tolist())}; expected positive, normal, finite numbers")
    if node.op_type == "DequantizeLinear":
        if isinstance(x, np.ndarray):
            return _stored_integers(node, x, scale, zero)
        if not isinstance(x.dtype, QuantizedDType):
            raise node.fail("its input is no quantized tensor; expected the output of a QuantizeLinear")
        own = (x.dtype.scale, x.dtype.zero_point)
        if scale.size != 1 or (float(narrow.reshape(-1)[0]), 0 if zero is None else int(zero.reshape(-1)[0])) != own:
            raise node.fail(f"its scale or zero point is not that of its input, {x.dtype}; expected the same")
        return node.apply("dequantize", x)
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    if zero.dtype not in (np.uint8, np.int8):
        raise node.fail(f"quantizes to {zero.dtype}; expected int8 or uint8")
    if scale.size != 1 or np.unique(zero).size != 1:
        raise node.fail("scales per channel of an activation are not supported")
    name = "qint8" if zero.dtype == np.int8 else "quint8"
    dtype = quantized(name, float(np.float32(scale.reshape(-1)[0])), int(zero.reshape(-1)[0]))
    return node.apply("quantize", x, dtype=dtype)


def _stored_integers(node: OnnxNode, x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None) -> Value:
    """Stored 8-bit weights stay integers with their scales; others (biases) become the floats they stand for."""
    axis = None
    if scale.size != 1:
        axis = node.axis(int(node.attr("axis", 1)), x.ndim)
        if scale.size != x.shape[axis]:
            raise node.fail(
                f"{counted(scale.size, 'scale')} for an axis of {x.shape[axis]}; blocked scales are not supported"
            )
    offset = np.zeros(1, np.int32) if zero is None else zero.astype(np.int32).reshape(-1)
    if x.dtype in (np.int8, np.uint8) and np.unique(offset).size == 1:
        name = "qint8" if x.dtype == np.int8 else "quint8"
        flat = scale.reshape(-1)
        dtype = quantized(name, flat if axis is not None else float(flat[0]), int(offset[0]), axis)
        return node.apply("dequantize", node.integers(x, dtype))
    along = [1] * x.ndim
    if axis is not None:
        along[axis] = scale.size
    shift = offset.reshape(along if offset.size > 1 else (1,) * x.ndim)
    factor = scale.astype(np.float32).reshape(along)
    return ((x.astype(np.int32) - shift).astype(np.float32) * factor).astype(np.float32)
