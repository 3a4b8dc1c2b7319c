"""Casts around moves: a value that is rounded, moved and widened again stays in float32, and is rounded in one pass.

Moves copy numbers as they are, so casts may change places with them. The two casts, side by side, are one pass that
joins the chain of elementwise ops before or behind. Clamps change places with rounding, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np

from megengine.kernels.elementwise import cannot_run
from megengine.kernels.half_conversion import HALVES, converted
from megengine.plan.layouts import problem_of
from megengine.traced_module.editing.rewiring import set_inputs
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import only_user

_FLOAT32 = np.dtype(np.float32)
_DTYPE, _PROGRAM = "dtype", "program"  # attributes of what converts, and of what computes


def _is_cast(expr: Expr, source: Any, target: Any) -> TypeGuard[Apply]:
    """True for a conversion of each number."""
    if not isinstance(expr, Apply) or not expr.record.by_type or _DTYPE not in expr.attrs:
        return False
    x, y = expr.inputs[0], expr.output
    return (x.dtype, y.dtype) == (source, target) and x.shape == y.shape  # bits of another width have another shape


def _moves(expr: Expr, dtype: Any) -> bool:
    """True for an op whose one result holds numbers of its operands of a type, and what that type can hold."""
    if not isinstance(expr, Apply) or len(expr.outputs) != 1 or not expr.record.by_type:
        return False
    if (expr.inputs[0].dtype, expr.output.dtype) != (dtype, dtype) or {_DTYPE, _PROGRAM} & set(expr.attrs):
        return False
    with np.errstate(over="ignore"):
        filled = np.float32(expr.attrs.get("value") or 0)
        return bool(filled == filled.astype(dtype))


def _joins_chain(expr: Any) -> bool:
    if not isinstance(expr, Apply) or len(expr.outputs) != 1:
        return False
    problem = problem_of(expr, rows=False)
    return problem is not None and cannot_run(problem) is None


@dataclass(frozen=True, slots=True)
class _Moved:
    """Moves between casts to a half and the cast back."""

    back: Apply
    casts: tuple[Apply, ...]

    @property
    def joins(self) -> bool:
        return _joins_chain(only_user(self.back.output))

    def rounds_last(self) -> bool:
        """Where the chain is that the casts join; else, where fewer numbers are."""
        joined = any(map(_joins_before, self.casts))
        if joined or self.joins:
            return not joined
        before, behind = sum(c.output.spec.size for c in self.casts), self.back.output.spec.size
        return behind < before or (behind == before and len(self.casts) > 1)


def _joins_before(narrowing: Apply) -> bool:
    source = narrowing.inputs[0]
    return only_user(source) is narrowing and _joins_chain(source.expr)


def _casts(node: TensorNode) -> tuple[Apply, ...] | None:
    """The casts from float32 that give all numbers of a value; None if it has others, or another user."""
    expr, dtype = node.expr, node.dtype
    if isinstance(expr, Constant):
        return ()
    if only_user(node) is None:  # who uses it several times is one
        return None
    if _is_cast(expr, _FLOAT32, dtype):
        return (expr,)
    if not _moves(expr, dtype):
        return None
    found: list[Apply] = []
    for operand in expr.inputs:
        if operand.dtype == dtype:
            if (casts := _casts(operand)) is None:
                return None
            found += casts
    return tuple({id(one): one for one in found}.values())


def _moved(back: Expr) -> _Moved | None:
    """What may stay in float32, and takes no more time for it."""
    if not isinstance(back, Apply) or (source := back.inputs[0]).dtype not in HALVES:
        return None
    if not _is_cast(back, source.dtype, _FLOAT32):
        return None
    if _is_cast(source.expr, _FLOAT32, source.dtype) or not (casts := _casts(source)):
        return None
    moved = _Moved(back, casts)
    return None if moved.joins and all(map(_joins_before, casts)) else moved


def _widened(graph: InternalGraph, moved: _Moved, *, rounded: bool) -> TensorNode:
    """The value in front of the cast back in float32, of numbers that are rounded where they come from, or not yet."""
    back, half = moved.back, moved.back.inputs[0].dtype
    made: dict[int, TensorNode] = {}

    def wide(node: TensorNode) -> TensorNode:
        if node.dtype != half:
            return node
        if id(node) not in made:
            made[id(node)] = of_expr(node, node.expr)
        return made[id(node)]

    def of_expr(node: TensorNode, expr: Any) -> TensorNode:
        if isinstance(expr, Constant):
            value = converted(expr.value.numpy(), _FLOAT32)
            return graph.constant(value, node.name, before=back, meta=expr.meta)
        if _is_cast(expr, _FLOAT32, half):
            return _rounded(graph, expr.inputs[0], node, back) if rounded else expr.inputs[0]
        operands = [wide(n) for n in expr.inputs]
        return graph.apply(expr.op, *operands, attrs=expr.attrs, name=node.name, before=back, meta=expr.meta)

    return wide(back.inputs[0])


def _rounded(graph: InternalGraph, source: TensorNode, like: TensorNode, back: Apply) -> TensorNode:
    node = source
    for dtype in (like.dtype, _FLOAT32):
        node = graph.apply("cast", node, attrs={_DTYPE: dtype}, name=like.name, before=back, meta=like.expr.meta)
    return node


def _clamps(expr: Any, dtype: Any) -> TypeGuard[Apply]:
    """True for an op that clamps each number, to numbers that a type has."""
    clamp = expr.record.rule.clamp if isinstance(expr, Apply) else None
    return clamp is not None and all(b is None or float(np.float32(b).astype(dtype)) == b for b in clamp(expr.attrs))


def _clamp_before_rounding(graph: InternalGraph) -> bool:
    """Let clamps of rounded numbers, whose results are rounded once more, take the numbers as they were."""
    changed = False
    for last in graph.exprs():
        half, clamp = last.outputs[0].dtype, last.inputs[0].expr if last.inputs else None
        if half not in HALVES or not _is_cast(last, _FLOAT32, half) or not _clamps(clamp, half):
            continue
        wide = clamp.inputs[0].expr
        narrow = wide.inputs[0].expr if _is_cast(wide, half, _FLOAT32) else None
        if narrow is None or not _is_cast(narrow, _FLOAT32, half):
            continue
        if all(only_user(one.output) is user for one, user in ((narrow, wide), (wide, clamp), (clamp, last))):
            set_inputs(clamp, (narrow.inputs[0],))
            changed = True
    return changed


def move_casts(graph: InternalGraph) -> bool:
    """Change in place; True if something changed. Results stay the same, bit for bit."""
    changed = _clamp_before_rounding(graph)
    found = [moved for expr in graph.exprs() if (moved := _moved(expr)) is not None]
    for moved in found:
        back, last = moved.back, moved.rounds_last()
        node = _widened(graph, moved, rounded=not last)
        if last:
            node = _rounded(graph, node, back.inputs[0], back)
        graph.replace_node({back.output: node})
    remove_dead(graph)
    return changed or bool(found)
