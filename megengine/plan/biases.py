"""Constants that are added to the float results of integer layers become their biases: the same bits, one pass less.

A layer with float results gives fl(fl(sum * M) + B). Where B is 0, a constant that is added behind may be B.
"""

from __future__ import annotations

import numpy as np

from megengine.kernels import int8
from megengine.kernels.lists import LISTS
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import is_among, remove_dead
from megengine.traced_module.patterns import any_, call, match

_SUM = call("add", any_(), any_())
_BIAS = 4  # the operand of layers
_AXES = {int8.int8_conv: 1, int8.int8_linear: -1}  # of channels of results
_LAYERS = {op: _AXES[kernel] for op, kernels in LISTS.items() for kernel in kernels if kernel in _AXES}


def _only_read_here(node: TensorNode) -> bool:
    return len(node.users) == 1 and not is_among(node, node.graph.outputs)


def _layer(node: TensorNode) -> tuple[Apply, Apply | None] | None:
    """The layer without a bias that gives a value in float, and the change of shape between that leaves out ones."""
    between, expr = None, node.expr
    if isinstance(expr, Apply) and expr.record.keeps_order and _only_read_here(node):
        source, shape = expr.inputs[0], expr.output.shape
        if source.shape[: len(shape)] == shape and set(source.shape[len(shape) :]) <= {1} and len(shape) > 1:
            between, node, expr = expr, source, source.expr
    if not isinstance(expr, Apply) or expr.op not in _LAYERS or not _only_read_here(node):
        return None
    bias = expr.inputs[_BIAS].expr
    plain = node.dtype == np.float32 and len(expr.inputs) == _BIAS + 1 and isinstance(bias, Constant)
    if not plain or bias.value.numpy().any() or (between is not None and _LAYERS[expr.op] < 0):
        return None
    return expr, between


def _by_channel(constant: np.ndarray, shape: tuple[int, ...], axis: int) -> np.ndarray | None:
    """A number for each channel of what is added to all values of this shape; None if others differ, too."""
    if constant.ndim > len(shape):
        return None
    sizes = [1] * len(shape)
    sizes[axis] = shape[axis]
    wide = constant.reshape((1,) * (len(shape) - constant.ndim) + constant.shape)
    if any(have not in (1, most) for have, most in zip(wide.shape, sizes, strict=True)):
        return None
    return np.broadcast_to(wide, sizes).reshape(-1) + np.float32(0)  # -0 becomes 0, as the sum with B is


def add_biases(graph: InternalGraph) -> bool:
    """In place; True if something changed."""
    changed = False
    for expr in list(graph.exprs()):
        if not isinstance(expr, Apply) or match(_SUM, expr.outputs[0]) is None or expr.output.dtype != np.float32:
            continue
        for node, other in (expr.inputs, expr.inputs[::-1]):
            if isinstance(other.expr, Constant) and node.shape == expr.output.shape and (found := _layer(node)):
                break
        else:
            continue
        layer, between = found
        bias = _by_channel(other.expr.value.numpy(), node.shape, _LAYERS[layer.op])
        if bias is None or not np.isfinite(bias).all():
            continue
        named = {"before": expr, "meta": layer.meta}
        given = graph.constant(Tensor(np.ascontiguousarray(bias)), f"{layer.output.name}_bias", **named)
        made = graph.apply(
            layer.op, *layer.inputs[:_BIAS], given, attrs=layer.attrs, name=f"{layer.output.name}_sum", **named
        )
        if between is not None:
            made = graph.apply(between.op, made, attrs=between.attrs, name=expr.output.name, **named)
        graph.replace_node({expr.output: made})
        changed = True
    if changed:
        remove_dead(graph)
    return changed
