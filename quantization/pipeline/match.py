"""Reading a QDQ graph: which chain of float exprs stands between dequantize and quantize."""

from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.quantization.pipeline.rules import clamp_of, rule_of
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value


@dataclass(frozen=True, slots=True)
class Stored:
    """An integer tensor behind a dequantize."""

    node: TensorNode

    @property
    def dtype(self) -> QuantizedDType:
        """Its quantized dtype."""
        return known_quantized(self.node.spec.dtype)


@dataclass(frozen=True, slots=True)
class LayerMatch:
    """A convolution or linear layer between integers: data, weight, bias and residual operands."""

    expr: Apply
    data: Stored
    weight: Stored
    bias: np.ndarray | None
    residual: Stored | None = None


def stored(node: TensorNode) -> Stored | None:
    """The integers behind a node, if a dequantize made it."""
    expr = node.expr
    return Stored(expr.inputs[0]) if is_op(expr, "dequantize") else None


def is_op(expr: Expr | None, *ops: str) -> bool:
    """True for an Apply of one of the ops."""
    return isinstance(expr, Apply) and expr.op in ops


def mean_over_picture(expr: Expr | None) -> bool:
    """True for a mean of [N, C, H, W] over H and W."""
    if not isinstance(expr, Apply) or expr.op != "mean" or len(expr.inputs[0].shape) != 4:
        return False
    return sorted(a % 4 for a in expr.attrs["axis"] or ()) == [2, 3]


def layer(node: TensorNode) -> LayerMatch | None:
    """The layer that makes a float node: conv2d, matmul, or matmul plus a constant bias."""
    expr = node.expr
    if is_op(expr, "add"):
        for product, bias in (expr.inputs, expr.inputs[::-1]):
            found = layer(product) if is_op(product.expr, "matmul") else None
            value = constant_value(bias)
            if found is not None and value is not None and value.ndim == 1 and found.bias is None:
                return LayerMatch(found.expr, found.data, found.weight, value)
        return None
    if not isinstance(expr, Apply) or (rule := rule_of(expr.op)) is None or rule.kind != "weighted":
        return None
    data, weight = stored(expr.inputs[0]), stored(expr.inputs[1])
    bias = constant_value(expr.inputs[2]) if len(expr.inputs) > 2 else None
    if data is None or weight is None or not isinstance(weight.node.expr, Constant):
        return None
    if len(expr.inputs) > 2 and bias is None:
        return None
    return LayerMatch(expr, data, weight, bias)


def layer_with_residual(node: TensorNode) -> LayerMatch | None:
    """A layer, or a layer whose result is summed with an integer tensor before rounding (R1)."""
    expr = node.expr
    if is_op(expr, "add"):
        for branch, other in (expr.inputs[::-1], expr.inputs):
            found, residual = layer(branch), stored(other)
            if found is not None and residual is not None:
                return LayerMatch(found.expr, found.data, found.weight, found.bias, residual)
    return layer(node)


def strip_clamps(node: TensorNode) -> tuple[TensorNode, tuple[float | None, float | None]]:
    """The node before relu, relu6 or clip, and the real bounds they put together."""
    lo: float | None = None
    hi: float | None = None
    while isinstance(node.expr, Apply) and (bounds := clamp_of(node.expr.op, node.expr.attrs)) is not None:
        low, high = bounds
        lo = low if lo is None else lo if low is None else max(lo, low)
        hi = high if hi is None else hi if high is None else min(hi, high)
        node = node.expr.inputs[0]
    return node, (lo, hi)
