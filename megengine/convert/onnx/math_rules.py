"""Import rules of arithmetic that is more than one op, or whose form changed between opsets."""

import math
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, Value, composition, rule, spec_of
from megengine.convert.onnx.open_values import settled
from megengine.convert.onnx.quant_rules import clipped_integers
from megengine.core.dtype import is_float, storage_of
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module.ir.node import TensorNode


@rule("Clip", quantized=True)
def clip(node: OnnxNode, x: Value) -> Value:
    """Bounds are attributes before opset 11 and optional inputs since; integers are compared as such."""
    bounds: list[Any] = (
        [node.attr("min"), node.attr("max")] if node.opset < 11 else [node.optional(1), node.optional(2)]
    )
    if node.opset >= 11 and isinstance(x, TensorNode) and (kept := clipped_integers(node, x, *bounds)) is not None:
        return kept
    x, *bounds = map(node.stored, (x, *bounds))
    if is_float(spec_of(x).dtype) and not any(isinstance(bound, TensorNode) for bound in bounds):
        low, high = (None if bound is None else _number(node, bound) for bound in bounds)
        if low == 0.0 and high == 6.0:
            return node.apply("relu6", x)
        if low is None and high is None:
            return x
        if low == 0.0 and (high is None or high >= np.finfo(np.float32).max):
            return node.apply("relu", x)
        return node.apply("clip", x, lo=-math.inf if low is None else low, hi=math.inf if high is None else high)
    for op, bound in zip(("maximum", "minimum"), bounds, strict=True):
        x = x if bound is None else node.apply(op, x, bound)
    return x


def _number(node: OnnxNode, bound: np.ndarray | float) -> float:
    if np.size(bound) != 1:
        raise node.fail(f"a bound has shape {np.shape(bound)}; expected one number")
    return float(np.reshape(bound, -1)[0])


@rule("HardSigmoid")
def hard_sigmoid(node: OnnxNode, x: Value) -> Value:
    """max(0, min(1, alpha * x + beta)); alpha = 1/6, beta = 1/2 is our hsigmoid."""
    alpha, beta = float(node.attr("alpha", 0.2)), float(node.attr("beta", 0.5))
    if abs(alpha - 1 / 6) < 1e-6 and beta == 0.5:
        return node.apply("hsigmoid", x)
    return node.apply("clip", node.apply("add", node.apply("mul", x, alpha), beta), lo=0.0, hi=1.0)


@rule("PRelu")
def prelu(node: OnnxNode, x: Value, slope: Value) -> Value:
    """A slope that is one constant is LeakyRelu; otherwise max(x, 0) + slope * min(x, 0).

    Old exporters write a slope for each channel without the axes behind it.
    """
    if isinstance(slope, np.ndarray) and slope.size == 1:
        return node.apply("leaky_relu", x, slope=float(slope.reshape(-1)[0]))
    if len(slope.shape) == 1 and len(x.shape) > 2 and slope.shape[0] == x.shape[1] != x.shape[-1]:
        slope = node.reshape(slope, (slope.shape[0], *(1,) * (len(x.shape) - 2)))  # one a channel
    negative = node.apply("mul", node.apply("minimum", x, 0.0), slope)
    return node.apply("add", node.apply("relu", x), negative)


@rule("Elu", "Celu")
def elu(node: OnnxNode, x: Value) -> Value:
    """max(x, 0) + alpha * (exp(min(x, 0)) - 1), with min(x, 0) / alpha for Celu."""
    low, alpha = node.apply("minimum", x, 0.0), float(node.attr("alpha", 1.0))
    low = node.apply("div", low, alpha) if node.op_type == "Celu" and alpha != 1.0 else low
    tail = node.apply("sub", node.apply("exp", low), 1.0)
    return node.apply("add", node.apply("relu", x), node.apply("mul", tail, alpha))


@rule("Add", "Div")
def arithmetic(node: OnnxNode, a: Value, b: Value) -> Value:
    """Broadcasting as NumPy; integers divide towards zero."""
    whole = node.op_type == "Div" and storage_of(spec_of(a).dtype).kind in "iu"
    return node.apply("trunc_div" if whole else node.op_type.lower(), a, b)


@rule("Pow")
def power(node: OnnxNode, a: Value, b: Value) -> Value:
    """Powers of 2 and of 1/2 are square and sqrt; the result has the type of the base."""
    dtype = storage_of(spec_of(a).dtype)
    if isinstance(b, np.ndarray) and b.size == 1 and len(b.shape) <= len(a.shape) and is_float(dtype):
        exponent = float(b.reshape(-1)[0])
        if exponent in (0.5, 2.0):
            return node.apply("sqrt" if exponent == 0.5 else "square", a)
        return node.apply("pow", a, exponent)
    wide = np.promote_types(dtype, storage_of(spec_of(b).dtype))
    return node.cast(node.apply("pow", node.cast(a, wide), node.cast(b, wide)), dtype)


@composition("Mod")
def modulo(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
    """The remainder has the sign of the divisor, or with `fmod` that of the dividend."""
    rest = apply("mod", a, b)
    whole = rest.dtype.kind in "iu"
    if bool(node.attr("fmod", 0)) is not whole:
        return rest  # our op's sign is the divisor's for integers, the dividend's for floats
    other = F.logical_and(F.not_equal(rest, 0), F.not_equal(rest < 0, (a if whole else b) < 0))
    return F.where(other, rest - b if whole else rest + b, rest)


@composition("Erfc")
def erfc(node: OnnxNode, x: Tensor) -> Tensor:
    """1 - erf(x): no operator of the standard, but Keras's exporter writes it for GELU."""
    return 1.0 - apply("erf", x)


@composition("BitShift")
def shift(node: OnnxNode, a: Tensor, b: Tensor) -> Tensor:
    """To the left or to the right."""
    return apply("left_shift" if node.attr("direction") == "LEFT" else "right_shift", a, b)


@composition("BitwiseNot")
def invert(node: OnnxNode, x: Tensor) -> Tensor:
    """All bits the other way."""
    return apply("bitwise_xor", x, Tensor._wrap(np.invert(np.zeros((), storage_of(x.dtype)))))


@composition("IsNaN")
def is_nan(node: OnnxNode, x: Tensor) -> Tensor:
    """What differs from itself."""
    return F.isnan(x)


@composition("IsInf")
def is_inf(node: OnnxNode, x: Tensor) -> Tensor:
    """Infinite values of either sign, or of those that the attributes name."""
    signs = [sign for sign, name in ((1, "positive"), (-1, "negative")) if node.attr(f"detect_{name}", 1)]
    if len(signs) == 2:
        return F.isinf(x)
    bound = float("inf") * signs[0] if signs else float("nan")
    return F.equal(x, bound)


@rule("Min", "Max", "Sum", "Mean")
def variadic(node: OnnxNode, y: Value, *more: Value) -> Value:
    """Any number of inputs, one after the other."""
    for value in more:
        y = node.apply("minimum" if node.op_type == "Min" else "maximum" if node.op_type == "Max" else "add", y, value)
    return node.apply("mul", y, 1.0 / (1 + len(more))) if node.op_type == "Mean" and more else y


@rule("Reciprocal")
def reciprocal(node: OnnxNode, x: Value) -> Value:
    """1 / x."""
    return node.apply("div", np.ones((), storage_of(spec_of(x).dtype)), x)


@rule("ArgMax", "ArgMin")
def arg_reduce(node: OnnxNode, x: Value) -> Value:
    """The place of the first extreme value along an axis, or of the last one: the first one from the end."""
    shape = x.shape
    axis, last = node.axis(int(node.attr("axis", 0)), len(shape)), bool(node.attr("select_last_index", 0))
    if last:
        steps = [-1 if a == axis else 1 for a in range(len(shape))]
        x = node.apply("slice", x, starts=(None,) * len(shape), stops=(None,) * len(shape), steps=tuple(steps))
    y = node.apply(node.op_type.lower(), x, axis=axis, keepdims=node.attr("keepdims", 1) == 1)
    y = node.cast(y, np.int64)
    return node.apply("sub", node.as_node(settled([shape[axis] - 1], ())), y) if last else y


@rule("Gelu")
def gelu(node: OnnxNode, x: Value) -> Value:
    """The exact form; the tanh form is spelled out."""
    if node.attr("approximate", "none") == "none":
        return node.apply("gelu", x)
    cube = node.apply("mul", node.apply("mul", x, x), x)
    inner = node.apply("add", x, node.apply("mul", cube, 0.044715))
    half = node.apply("add", node.apply("tanh", node.apply("mul", inner, math.sqrt(2 / math.pi))), 1.0)
    return node.apply("mul", node.apply("mul", x, half), 0.5)
