"""settle: integers move where a file moves floats between a layer and its pairs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from megengine.core.dtype import known_quantized
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call


def moves(expr: Any) -> bool:
    """True for an op whose result holds nothing but elements of its first input, of integers too."""
    if not isinstance(expr, Apply) or len(expr.outputs) != 1 or not expr.record.moves:
        return False
    return expr.record.rule.moves and expr.record.rule.usable(expr.attrs) is None


_STORED = any_()
_REAL = call("dequantize", _STORED)
_MOVED = any_().where(lambda node: moves(node.expr) and (one := node.expr.inputs[0].expr) and _dequantizes(one))


def _dequantizes(expr: Any) -> bool:
    return isinstance(expr, Apply) and expr.record.dequantizes


def _move_stored(m: Found) -> TensorNode | None:
    """What is moved behind `dequantize`, moved before it."""
    move = m.root.expr
    assert isinstance(move, Apply), "the pattern takes ops alone"
    source = move.inputs[0].expr.inputs[0]
    if isinstance(source.expr, Constant) and all(isinstance(n.expr, Constant) for n in move.inputs[1:]):
        value = _moved_weight(source.expr.value, move)
        stored = None if value is None else m.constant(value, source.name)
    elif source.dtype.axis is None:
        stored = m.apply(move.op, source, *move.inputs[1:], attrs=dict(move.attrs), name=f"{m.root.name}_stored")
    else:
        stored = None
    return None if stored is None else m.apply("dequantize", stored, name=m.root.name)


def _moved_weight(value: Tensor, move: Apply) -> Tensor | None:
    """Constant integers, moved; None where they had a scale for each place of an axis that is none afterwards."""
    dtype, others = known_quantized(value.dtype), [n.expr.value for n in move.inputs[1:]]

    def moved(array: np.ndarray) -> np.ndarray:
        return apply(move.op, Tensor(np.ascontiguousarray(array, np.int32)), *others, **move.attrs).numpy()

    stored = np.ascontiguousarray(moved(value.numpy()).astype(dtype.storage))
    if dtype.axis is None:
        return Tensor._wrap(stored, dtype)
    count = value.shape[dtype.axis]
    along = np.arange(count).reshape([-1 if a == dtype.axis else 1 for a in range(len(value.shape))])
    places = moved(np.broadcast_to(along, value.shape))
    for axis, size in enumerate(places.shape):
        if size == count and (np.moveaxis(places, axis, -1) == np.arange(count)).all():
            return Tensor._wrap(stored, replace(dtype, axis=axis))
    return None


def _joins(expr: Any) -> bool:
    """True for an op that puts dequantized values of one scale side by side."""
    if not isinstance(expr, Apply) or not expr.record.rule.joins or not all(_dequantizes(n.expr) for n in expr.inputs):
        return False
    return len({n.expr.inputs[0].dtype for n in expr.inputs}) == 1 and expr.inputs[0].expr.inputs[0].dtype.axis is None


_JOINED = any_().where(lambda node: _joins(node.expr))


def _join_stored(m: Found) -> TensorNode:
    join = m.root.expr
    stored = [n.expr.inputs[0] for n in join.inputs]
    joined = m.apply(join.op, *stored, attrs=dict(join.attrs), name=f"{m.root.name}_stored")
    return m.apply("dequantize", joined, name=m.root.name)


_ROUNDED = call("quantize", any_())


def _quantize_before(m: Found) -> TensorNode | None:
    """What is quantized behind moves, quantized before them: there a layer may end."""
    x, between = m.root.expr.inputs[0], []
    while moves(x.expr) and len(x.users) == 1 and x.spec.size == x.expr.inputs[0].spec.size:
        between.append(x.expr)
        x = x.expr.inputs[0]
    if (
        not between
        or _dequantizes(x.expr)
        or any(n is out for out in m.graph.outputs for n in (e.output for e in between))
    ):
        return None
    y = m.apply("quantize", x, attrs=dict(m.root.expr.attrs), name=f"{m.root.name}_rounded")
    for move in reversed(between):
        y = m.apply(move.op, y, *move.inputs[1:], attrs=dict(move.attrs), name=m.root.name)
    return y


def settle(graph: InternalGraph) -> InternalGraph:
    """A copy of a QDQ graph in which pairs stand next to the layers that they are for.

    A file may have a reshape or a transposition there: a convolution over one axis is read as one over two, and other
    tools quantize the operands of a product behind the split into heads, or store a weight that is turned.
    """
    g = graph.clone()
    rewrite(g, [Rule("settle", _ROUNDED, _quantize_before, shared=True)], last_first=True)
    rewrite(g, [Rule("settle", _MOVED, _move_stored, shared=True), Rule("settle", _JOINED, _join_stored, shared=True)])
    return g
