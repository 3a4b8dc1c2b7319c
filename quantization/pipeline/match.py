"""Reading a QDQ graph: which chain of float exprs stands between dequantize and quantize."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized, quantized
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value
from megengine.traced_module.passes.linear import BIAS, BIASED, PRODUCT
from megengine.traced_module.patterns import any_, call, match

Clamp = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Stored:
    """An integer tensor behind a dequantize."""

    node: TensorNode

    @property
    def dtype(self) -> QuantizedDType:
        return known_quantized(self.node.spec.dtype)


@dataclass(frozen=True, slots=True)
class LayerMatch:
    """A convolution or linear layer between integers: data, weight, bias and residual operands."""

    expr: Apply
    data: Stored
    weight: Stored
    bias: np.ndarray | None
    residual: Stored | None = None


def centred(weight: Stored) -> tuple[np.ndarray, QuantizedDType] | None:
    """The constant integers of a weight without their zero point; None where these do not fit into 8 signed bits."""
    assert isinstance(weight.node.expr, Constant), weight
    value, dtype = weight.node.expr.value.numpy(), weight.dtype
    if not dtype.zero_point and dtype.storage == np.int8:
        return value, dtype
    wide = value.astype(np.int32) - dtype.zero_point
    if wide.size and (wide.min() < -128 or wide.max() > 127):
        return None
    return wide.astype(np.int8), quantized("qint8", dtype.scale, 0, dtype.axis)


def _scaled_by_result(expr: Apply, weight: QuantizedDType) -> bool:
    """True for one scale, or one for each channel of the result: an integer sum takes no others."""
    axis_of = expr.record.rule.weight_axis
    return weight.axis is None or (axis_of is not None and axis_of(expr.attrs) == weight.axis)


def stored(node: TensorNode) -> Stored | None:
    """The integers behind a node, if a dequantize made it."""
    expr = node.expr
    return Stored(expr.inputs[0]) if isinstance(expr, Apply) and expr.record.dequantizes else None


def is_product(expr: Any) -> bool:
    """True for a matrix product that is no layer: of two computed values, or with a stack of constant matrices."""
    return isinstance(expr, Apply) and expr.record.rows and not has_matrix(expr)


def has_matrix(expr: Apply) -> bool:
    """True for a product whose second operand is a constant matrix: the weight of a linear layer."""
    weight = expr.inputs[1]
    weight = weight if (integers := stored(weight)) is None else integers.node
    return isinstance(weight.expr, Constant) and weight.spec.ndim == 2 and not expr.attrs.get("transpose_a")


def is_bias(expr: Any) -> bool:
    """True for the addition of a constant bias to a linear layer."""
    if not isinstance(expr, Apply) or not expr.record.rule.adds:
        return False
    m = match(BIASED, expr.output)
    return m is not None and has_matrix(m.expr(PRODUCT)) and m[BIAS].shape == m[PRODUCT].shape[-1:]


def over_picture(expr: Expr | None) -> bool:
    """True for a mean or sum of [N, C, H, W] over H and W."""
    if not isinstance(expr, Apply) or not expr.record.rule.averages or len(expr.inputs[0].shape) != 4:
        return False
    return sorted(a % 4 for a in expr.attrs.get("axis") or ()) == [2, 3]


def is_convolved(node: TensorNode) -> bool:
    """True for a value that a convolution reads, as it is or moved."""
    moved = [node]
    for value in moved:  # it grows
        for user in (u for u in value.users if isinstance(u, Apply)):
            if user.record.rule.weighted and user.inputs[0] is value and len(user.inputs[1].shape) > 2:
                return True
            moved.extend(user.outputs if user.record.rule.kind == "shape" else ())
    return False


def layer(node: TensorNode) -> LayerMatch | None:
    """The layer that makes a float node: conv2d, matmul, or matmul plus a constant bias.

    None too where the weight less its zero point needs more than 8 bits, or has scales along another axis than that of
    the results: the layer stays in float between its pairs.
    """
    biased = match(BIASED, node)
    expr = node.expr if biased is None or biased[BIAS].spec.ndim != 1 else biased.expr(PRODUCT)
    if not isinstance(expr, Apply) or not expr.record.weighted:
        return None
    if is_product(expr):
        return None
    data, weight = map(stored, expr.inputs[:2])
    bias = expr.inputs[2:] if biased is None else (biased[BIAS],)
    value = constant_value(bias[0]) if bias else None
    if data is None or weight is None or not isinstance(weight.node.expr, Constant) or (bias and value is None):
        return None
    if centred(weight) is None or not _scaled_by_result(expr, weight.dtype):
        return None
    return LayerMatch(expr, data, weight, value)


_LAYER, _INTEGERS = any_().where(lambda node: layer(node) is not None), call("dequantize", any_())
_SUM = call("add", _LAYER, _INTEGERS).where(lambda node: node.expr.inputs[0].shape == node.expr.inputs[1].shape)


def layer_with_residual(node: TensorNode) -> LayerMatch | None:
    """A layer, or a layer whose result is summed with an integer tensor before rounding (R1)."""
    m = match(_SUM, node)
    branch = layer(node if m is None else m[_LAYER])
    return branch if branch is None or m is None else replace(branch, residual=stored(m[_INTEGERS]))


def strip_clamps(node: TensorNode) -> tuple[TensorNode, Clamp]:
    """The node before relu, relu6 or clip, and the real bounds they put together."""
    lo: float | None = None
    hi: float | None = None
    while isinstance(node.expr, Apply) and (bounds := node.expr.record.rule.bounds(node.expr.attrs)) is not None:
        low, high = bounds
        lo = low if lo is None else lo if low is None else max(lo, low)
        hi = high if hi is None else hi if high is None else min(hi, high)
        node = node.expr.inputs[0]
    return node, (lo, hi)


def why_constants_float(expr: Apply) -> str | None:
    """Why an op with constants stays in float, by their values."""
    values = [constant_value(n) for n in expr.inputs if isinstance(n.expr, Constant)]
    if all(value is not None and np.isfinite(value).all() for value in values):
        return None
    return f"a constant of {expr.op} holds NaN or infinity"


_WHOLE = call("floor") | call("ceil")


def why_places_float(exprs: tuple[Apply, ...]) -> str | None:
    """Why ops stay in float that round to whole numbers, or take what is left of one: places that are sampled."""
    for expr in exprs:
        read = expr.inputs if expr.record.rule.combines else ()
        if any(match(_WHOLE, node) is not None for node in (expr.outputs[0], *read)):
            return f"{expr.op} is of places, which whole numbers and their fractions give"
    return None
