"""A traced module becomes a part of another one: its graphs take part in the history, the names and the ids of that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.module import Module
from megengine.traced_module.ir.expr import GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, get_subattr, module_of
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.primitives import share_history
from megengine.traced_module.ir.provenance import graph_path, inside
from megengine.traced_module.ir.queries import graphs_of


def attach(graph: InternalGraph, path: str, module: GraphOwner, ahead: tuple[int, int] = (0, 0)) -> None:
    """Let a traced module that nothing holds yet be at a path below the module of a graph.

    So many (node, expression) ids are left free for what is made before the next one that the history gives; those
    that its graphs got are not counted in the history yet.
    """
    graphs = graphs_of(module)
    journal = graph.journal
    join(graph, graphs, (journal.next_node + ahead[0], journal.next_expr + ahead[1]))
    below = "_".join((graph.name, *path.split("."))), f"{graph.qualname}.{path}"
    at = ".".join(part for part in (graph_path(graph), path) if part)
    _rename(graphs, (module.graphs[0].name, module.graphs[0].qualname), below, at)


def is_of_top(graph: InternalGraph) -> bool:
    """True for the graphs of the outermost module, which no call enters."""
    return graph.top is graph or (graph.owner is not None and graph.owner is graph.top.owner)


def take_in(graph: InternalGraph, graphs: Sequence[InternalGraph]) -> None:
    """Let graphs of one history become part of that of another graph, under ids that are not in use there."""
    own = graphs[0].journal
    join(graph, graphs, graph.journal.counts)
    graph.journal.skip(own.counts)


def join(graph: InternalGraph, graphs: Sequence[InternalGraph], shift: tuple[int, int]) -> None:
    """Let graphs count and remember edits together with another one; their (node, expression) ids go up."""
    share_history(graphs, graph.top)
    for each in graphs:
        for expr in each.exprs(recursive=False):
            expr._id += shift[1]
            for node in expr.outputs:
                node._id += shift[0]


def _rename(graphs: Sequence[InternalGraph], old: tuple[str, str], new: tuple[str, str], path: str) -> None:
    def moved(text: str, which: int) -> str:
        return new[which] + text[len(old[which]) :] if text.startswith(old[which]) else text

    for graph in graphs:
        graph.name, graph.qualname = moved(graph.name, 0), moved(graph.qualname, 1)
        for expr in graph.exprs(recursive=False):
            expr.meta.update(inside(expr.meta, path))
            for node in expr.outputs:
                node._qualname = moved(node.qualname, 1)


def places_read(expr: GetAttr) -> Iterator[tuple[Any, str]]:
    """Every module on the way to what an expression reads, with the attribute by which the way goes on."""
    try:
        at = module_of(expr.inputs[0])
    except GraphError:  # of a graph that nothing calls and whose layers went
        return
    for part in expr.name.split("."):
        yield at, part
        at = object.__getattribute__(at, "__dict__").get(part) if isinstance(at, Module) else None


def attribute_at(node: ModuleNode, path: str) -> tuple[Any, str, Any]:
    """The module that holds what is at a path below that of a node, its name there, and its value or None."""
    parent, _, name = path.rpartition(".")
    owner = module_of(node)
    holder = get_subattr(owner, parent) if parent else owner
    if not isinstance(holder, Module):
        raise GraphError(f"{path!r} of {node.qualname}: {parent!r} is a {type(holder).__name__}, not a module")
    return holder, name, object.__getattribute__(holder, "__dict__").get(name)


def own_history(graphs: Sequence[InternalGraph]) -> None:
    """Let graphs be those of one module: the first is the outermost, and edits of all are undone together."""
    if graphs:
        share_history(graphs, graphs[0])
        graphs[0].journal.recording = True
