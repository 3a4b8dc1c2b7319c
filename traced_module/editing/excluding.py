"""Marks of a model: which of its calls quantization leaves in float. Files of all formats keep them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megengine.core.errors import GraphError
from megengine.traced_module.editing.checking import check_owned
from megengine.traced_module.ir.expr import Apply, Call, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node
from megengine.traced_module.ir.primitives import assign
from megengine.traced_module.ir.provenance import FLOAT
from megengine.traced_module.ir.queries import child_graph


def exclude(graph: InternalGraph, nodes: Iterable[Node], *, excluded: bool = True) -> None:
    """Let quantization leave the calls or ops that make these nodes in float; with `excluded=False`, no longer.

    Of a call of a submodule all that it runs is meant, in all calls of this submodule. What a pass puts in the place of
    several calls is left in float if one of them was. It is one step for `undo`.

    Raises:
        GraphError: a node is of another graph, or is made by no call: inputs and weights have no integers of their own.

    Example:
        >>> exclude(traced.graph, [traced.graph.node("fc_out")])  # doctest: +SKIP
    """
    nodes = list(nodes)
    check_owned(graph, "exclude", nodes)
    for node in nodes:
        if not isinstance(node.expr, Apply | Call):
            raise GraphError(f"exclude: {node.name!r} is no result of a call; give that of the call that uses it")
    with graph.transaction("exclude"):
        for node in nodes:
            for expr in every_call(node.expr):
                if bool(expr.meta.get(FLOAT)) != excluded:
                    rest = {key: value for key, value in expr.meta.items() if key != FLOAT}
                    assign(expr.top_graph, expr, "meta", {**rest, FLOAT: True} if excluded else rest)


def every_call(expr: Expr) -> Iterator[Expr]:
    """An expression, and all calls and ops of the graphs that it enters."""
    yield expr
    inside = child_graph(expr)
    if inside is not None:
        yield from (each for each in inside.exprs() if isinstance(each, Apply | Call))
