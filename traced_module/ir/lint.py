"""The checks of `graph.lint()`."""

from __future__ import annotations

from collections import Counter

from megengine.core.errors import GraphError
from megengine.traced_module.ir.expr import Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.methods import methods
from megengine.traced_module.ir.queries import child_graph


def check(graph: InternalGraph) -> None:
    """See `InternalGraph.lint`. Each graph is checked once, however often it is called."""
    seen = {id(graph)}
    todo = [graph]
    while todo:
        at = todo.pop()
        children = [c for c in _check_one(at) if id(c) not in seen]
        seen.update(map(id, children))
        todo += reversed(children)


def _check_one(graph: InternalGraph) -> list[InternalGraph]:
    """Check one graph; returns those that it calls, each once."""
    made: set[int] = set()
    children: dict[int, InternalGraph] = {}
    for expr in graph._order:
        _check_uses(expr, made)
        for n in expr._outputs:
            if graph._names.get(n._name) is not n or n._graph is not graph or n._expr is not expr:
                raise GraphError(f"lint: {n.name!r} is not owned by graph {graph.name!r}")
            made.add(id(n))
        child = child_graph(expr)
        if child is not None:
            children[id(child)] = child
        if child is None or not _enters_as_traced(expr, child):
            methods.check_same(expr, expr._inputs)
    _check_left_over(graph, made)
    return list(children.values())


def _check_uses(expr: Expr, made: set[int]) -> None:
    uses = Counter(map(id, expr._inputs))
    for n in expr._inputs:
        if id(n) not in made:
            raise GraphError(f"lint: {expr!r} uses {n.name!r} before it is made")
        if n._users.get(expr) != uses[id(n)]:
            raise GraphError(f"lint: users of {n.name!r} do not agree with the inputs of {expr!r}")


def _check_left_over(graph: InternalGraph, made: set[int]) -> None:
    alive = set(graph._order)
    for n in graph._names.nodes().values():
        if id(n) not in made:
            raise GraphError(f"lint: name {n.name!r} is left over")
        if not alive.issuperset(n._users):
            raise GraphError(f"lint: {n.name!r} is used by an expression that is not in the graph")
    for n in (*graph._inputs, *graph._outputs):
        if id(n) not in made:
            raise GraphError(f"lint: input or output {n.name!r} is not made in the graph")


def _enters_as_traced(expr: Expr, child: InternalGraph) -> bool:
    """True for the call of a module whose graph has the specs of the call: its own check finds all the rest."""
    given = expr._inputs[1:]
    same = [n.spec for n in given] == [n.spec for n in child._inputs[1:]]
    made = [n.spec for n in expr._outputs] == [n.spec for n in child._outputs]
    return same and made and all(n.spec.size > 16 or not n.expr._from_shapes for n in given)
