"""Fusion for float plans: convolution or linear with bias, residual and activation becomes one op."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from megengine.dispatch import QuantRule, get_op
from megengine.ops.fused import ACTIVATIONS
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import constant_value, mark, only_user


def _bounds(op: str, attrs: Mapping[str, Any]) -> tuple[float, float] | None:
    """The bounds of an op that only clamps, None for others."""
    rule = get_op(op).quant
    if not isinstance(rule, QuantRule) or rule.clamp is None:
        return None
    low, high = rule.clamp(attrs)
    return -math.inf if low is None else low, math.inf if high is None else high


_CLAMPS = {_bounds(name, {}): name for name in ACTIVATIONS[1:] if _bounds(name, {})}


def _activation(expr: Apply) -> str | None:
    """The fused name of an activation expression, None for others."""
    return expr.op if expr.op in ACTIVATIONS else _CLAMPS.get(_bounds(expr.op, expr.attrs))


def _next(node: TensorNode) -> Apply | None:
    """The only expression that uses the value, if it is an op and the value is no output."""
    users = node.users
    single = users[0] if len(users) == 1 and isinstance(users[0], Apply) else None
    return single if single is not None and only_user(node, single) else None


def _zero_bias(graph: InternalGraph, before: Apply, channels: int) -> TensorNode:
    return graph.constant(np.zeros(channels, np.float32), "no_bias", before=before)


def _conv(graph: InternalGraph, conv: Apply) -> None:
    last, residual, activation = conv, None, "none"
    user = _next(conv.output)
    if user is not None and user.op == "add" and user.inputs[0].spec == user.inputs[1].spec:
        other = user.inputs[1] if user.inputs[0] is conv.output else user.inputs[0]
        if other is not conv.output and other.spec == conv.output.spec and not _later_conv(graph, other, conv):
            last, residual = user, other
            user = _next(user.output)
    name = None if user is None else _activation(user)
    if user is not None and name is not None:
        last, activation = user, name
    bias = conv.inputs[2] if len(conv.inputs) == 3 else _zero_bias(graph, last, conv.output.shape[1])
    inputs = [*conv.inputs[:2], bias, *([] if residual is None else [residual])]
    attrs = {**conv.attrs, "activation": activation}
    new = graph.apply("fused_conv2d", *inputs, attrs=attrs, name=last.name, before=last)
    mark(new.expr, conv, "fuse")
    replace_all_uses(graph, last.output, new)


def _later_conv(graph: InternalGraph, other: TensorNode, conv: Apply) -> bool:
    """True if the other operand of an addition is a convolution that comes later: that one takes the addition."""
    expr = other.expr
    if not isinstance(expr, Apply) or expr.op != "conv2d" or _next(other) is None:
        return False
    exprs = graph.exprs()
    return exprs.index(expr) > exprs.index(conv)


def _linear(graph: InternalGraph, product: Apply) -> None:
    x, w = product.inputs
    value = constant_value(w)
    if value is None or x.spec.ndim != 2 or w.spec.ndim != 2 or product.attrs["transpose_a"] or x.dtype != np.float32:
        return
    last, bias, activation = product, None, "none"
    user = _next(product.output)
    if user is not None and user.op == "add":
        other = user.inputs[1] if user.inputs[0] is product.output else user.inputs[0]
        if isinstance(other.expr, Constant) and other.spec.size == product.output.shape[1] == other.shape[-1]:
            bias, last = np.asarray(constant_value(other)).reshape(-1), user
            user = _next(user.output)
    name = None if user is None else _activation(user)
    if user is not None and name is not None:
        last, activation = user, name
    if not product.attrs["transpose_b"]:
        w = graph.constant(np.ascontiguousarray(value.T), w.name, before=last, meta=w.meta)
    b = _zero_bias(graph, last, w.shape[0]) if bias is None else graph.constant(bias, "bias", before=last)
    new = graph.apply("fused_linear", x, w, b, attrs={"activation": activation}, name=last.name, before=last)
    mark(new.expr, product, "fuse")
    replace_all_uses(graph, last.output, new)


def fuse(graph: InternalGraph) -> bool:
    """Fuse in place; True if something changed."""
    before = len(graph.exprs())
    for expr in graph.exprs():
        if isinstance(expr, Apply) and expr.op == "conv2d":
            fixed = all(isinstance(n.expr, Constant) for n in expr.inputs[1:])
            if fixed and expr.inputs[0].dtype == np.float32:
                _conv(graph, expr)
        elif isinstance(expr, Apply) and expr.op == "matmul":
            _linear(graph, expr)
    remove_dead(graph)
    return len(graph.exprs()) != before
