"""Moves that copy parts of a float value before it is quantized, as windows of volumes do: integers are moved instead.

Quantizing rounds each number on its own, so that it may change places with moves. Fewer numbers are rounded, and a
quarter of the bytes is copied.
"""

from __future__ import annotations

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead

_FLOAT32 = np.dtype(np.float32)


def _moves(expr: Expr) -> bool:
    """True for an op that moves integers as it moves the numbers that they stand for."""
    if not isinstance(expr, Apply) or len(expr.outputs) != 1 or not expr.record.by_type or "dtype" in expr.attrs:
        return False
    rule = expr.record.rule
    if not (rule.moves or rule.joins) or rule.usable(expr.attrs) is not None:
        return False
    return all(n.dtype == _FLOAT32 for n in (*expr.inputs, expr.output))


def _region(quantize: Apply) -> tuple[list[Apply], list[TensorNode]]:
    """The moves between a quantized value and those that they copy, last first, and these; of no other use."""
    outputs = {id(n) for n in quantize.graph.outputs}
    inside, sources = {id(quantize): quantize}, []
    waiting = [quantize.inputs[0]]
    while waiting:
        node = waiting.pop()
        expr, alone = node.expr, id(node) not in outputs
        if id(expr) in inside:
            continue
        if alone and _moves(expr) and all(id(u) in inside for u in node.users):
            inside[id(expr)] = expr
            waiting += expr.inputs
        elif all(node is not s for s in sources):
            sources.append(node)
    moves = [e for e in inside.values() if e is not quantize]
    made = {id(e.output) for e in moves}
    return moves, [s for s in sources if id(s) not in made]


def quantize_before_moves(graph: InternalGraph) -> bool:
    """Change in place; True if something changed."""
    changed = False
    for expr in list(graph.exprs()):
        if not isinstance(expr, Apply) or not expr.record.quantizes:
            continue
        dtype: QuantizedDType = expr.attrs["dtype"]
        moves, sources = _region(expr)
        fewer = sum(s.spec.size for s in sources) < expr.inputs[0].spec.size
        if not moves or not fewer or dtype.axis is not None or any(isinstance(s.expr, Constant) for s in sources):
            continue
        within = {id(e) for e in moves}
        new: dict[int, TensorNode] = {}
        for move in (e for e in list(graph.exprs()) if id(e) in within):
            for source in move.inputs:
                if id(source) not in new:
                    name = f"{source.name}_q"
                    new[id(source)] = graph.apply(expr.op, source, attrs=expr.attrs, name=name, before=move)
            moved = [new[id(n)] for n in move.inputs]
            new[id(move.output)] = graph.apply(move.op, *moved, attrs=move.attrs, name=f"{move.name}_q", before=move)
        replace_all_uses(graph, expr.output, new[id(expr.inputs[0])])
        changed = True
    if changed:
        remove_dead(graph)
    return changed
