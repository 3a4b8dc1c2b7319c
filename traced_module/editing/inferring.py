"""Specs that follow an edit: of what uses a changed value, and of calls that enter a changed graph."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from megengine.core.errors import MegEngineError, ShapeError
from megengine.core.sizes import is_open
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.ir.expr import Call, Constant, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import assign, remove_dead
from megengine.traced_module.ir.queries import all_exprs, called_exprs, child_graph, enters_otherwise, is_reached
from megengine.traced_module.tracing.lengths import open_names
from megengine.traced_module.tracing.specs import specs_of_call


def infer_again(
    graph: InternalGraph, changed: Sequence[Expr], results: list[TensorSpec] | None = None, *, entries: bool = True
) -> None:
    """Bring specs up to date from these expressions on, in execution order; then where this graph is called.

    A graph of a submodule that none of its calls gives the specs of its inputs any more takes those of its first call.
    `results` are the specs of the graph's outputs before the edit, if it may have exchanged them already.
    """
    todo = [(graph, changed, result_specs(graph) if results is None else results)]
    failed: dict[Expr, MegEngineError] = {}  # what other calls of a graph give may still repair it
    while todo:  # not by recursion: modules may nest deeper than calls can
        at, exprs, before = todo.pop()
        entering = infer_in_order(at, exprs, failed)
        wanted = result_specs(at)
        if before != wanted:
            calls: dict[InternalGraph, list[Expr]] = {}
            for e in all_exprs(at.top):
                if child_graph(e) is at and [n.spec for n in e.outputs] != wanted:
                    calls.setdefault(e.top_graph, []).append(e)
            todo += [(caller, listed, result_specs(caller)) for caller, listed in calls.items()]
        for child in dict.fromkeys(child_graph(expr) for expr in entering):
            before = result_specs(child)
            if _take_entry(child):
                todo.append((child, list(child.exprs(recursive=False)), before))
    for expr, error in failed.items():
        expr.top_graph.journal.postpone(expr, error)
    if entries and graph.top is not graph:
        infer_entries(graph)


def _take_entry(child: InternalGraph) -> bool:
    """Give the inputs of a graph the specs of its first call that is possible, if no call gives it those it has."""
    calls = [e for e in called_exprs(child.top) if child_graph(e) is child]
    possible = [e for e in calls if e not in child.journal.postponed]
    if not possible or not all(map(enters_otherwise, calls)):
        return False
    for node, argument in zip(child.inputs[1:], possible[0].inputs[1:], strict=True):
        if node.spec != argument.spec:
            assign(child, node, "_spec", argument.spec)
    return True


def infer_entries(graph: InternalGraph) -> None:
    """Infer the calls again that enter graphs with other shapes than those they were traced with.

    What fits the graph as it was traced may not fit these; there are such calls in few models.
    """
    top = graph.top
    if top._entered_otherwise is None:
        top._entered_otherwise = any(map(enters_otherwise, all_exprs(top)))
    for expr in all_exprs(top) if top._entered_otherwise else ():
        if enters_otherwise(expr):
            infer_again(expr.top_graph, [expr], entries=False)


def result_specs(graph: InternalGraph) -> list[TensorSpec]:
    """Specs of the results where another graph calls this one."""
    return [] if graph.top is graph else [n.spec for n in graph.outputs]


def infer_in_order(graph: InternalGraph, changed: Sequence[Expr], failed: dict[Expr, MegEngineError]) -> list[Expr]:
    """Bring specs of one graph up to date; returns calls that give graphs other specs than those of their inputs.

    `failed` takes what is impossible, and gives up what no longer is.
    """
    entering: list[Expr] = []
    waiting = {e.position: e for e in changed}
    todo = sorted(waiting)  # a heap, first in execution order on top
    while todo:
        expr = waiting.pop(heapq.heappop(todo))
        note_entry(expr)
        try:
            specs = specs_of(expr, expr.inputs)
            if specs is not None and len(specs) != len(expr.outputs):
                raise ShapeError(f"{expr!r} would make {counted(len(specs), 'value')}; it makes {len(expr.outputs)}")
        except MegEngineError as error:
            failed[expr] = error
            continue
        failed.pop(expr, None)
        graph.journal.postponed.pop(expr, None)
        if enters_otherwise(expr):
            entering.append(expr)
        if specs is None:
            continue
        for node, spec in zip(expr.outputs, specs, strict=True):
            if node.spec != spec:
                assign(graph, node, "_spec", spec)
            elif not tells_shapes(node):
                continue
            for user in node.users:
                if user.position not in waiting:
                    waiting[user.position] = user
                    heapq.heappush(todo, user.position)
    return entering


def settle_lengths(graph: InternalGraph) -> None:
    """Give each call of a graph that was put together lengths of its own, and infer what follows from them."""
    taken = open_names(graph.inputs)
    for expr in graph.exprs(recursive=False):
        outputs = [n for n in expr.outputs if isinstance(n, TensorNode)]
        if isinstance(expr, Call) and any(is_open(n.spec.shape) for n in outputs):
            specs = specs_of_call(expr, expr.inputs, taken)
            for node, spec in zip(outputs, specs or (), strict=False):
                if node.spec != spec:
                    assign(graph, node, "_spec", spec)
            taken |= open_names(outputs)


def retry(expr: Expr) -> None:
    """At the end of a transaction, infer an expression again that was impossible; remove it if no result needs it."""
    graph = expr.top_graph
    postponed = graph.journal.postponed
    infer_again(graph, [expr] if expr.in_graph else [])
    if expr in postponed and expr.in_graph and not any(e is expr for e in needed(graph)):
        remove_dead(graph)
    if not is_reached(expr):
        postponed.pop(expr, None)  # nothing calls its graph: a call that an edit puts in will find it impossible


def needed(graph: InternalGraph) -> list[Expr]:
    """Expressions that a result needs, or that are to stay."""
    kept = [n for e in graph.exprs(recursive=False) if e.kept for n in e.outputs]
    return [e for e in graph.get_dep_exprs([*graph.outputs, *kept]) if not isinstance(e, Input)]


def note_entry(expr: Expr) -> None:
    """Remember if there is such a call."""
    if enters_otherwise(expr):
        expr.top_graph.top._entered_otherwise = True


def tells_shapes(node: Node) -> bool:
    """True for a value that is known and may be a shape: computed from shapes of others, or a constant."""
    if not isinstance(node, TensorNode):
        return False
    expr = node.expr
    known = expr.from_shapes or (isinstance(expr, Constant) and getattr(node.spec.dtype, "kind", "") in ("i", "u"))
    return known and node.spec.size <= 16
