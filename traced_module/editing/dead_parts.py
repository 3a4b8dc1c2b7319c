"""What a model holds and no result needs: calls, submodules, layers and tensors, and graphs that nothing enters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import places_read
from megengine.traced_module.ir.expr import GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.primitives import drop_attribute, forget_graphs, remove_dead
from megengine.traced_module.ir.queries import child_graph, child_graphs

Place = tuple[int, str]  # id of the module that holds an attribute, name


def drop_dead_parts(graph: InternalGraph) -> None:
    """Remove expressions that no result needs from a graph and those that it enters, and what no graph reads then.

    Of a flattened module, graphs of submodules that nothing calls and that read what goes are forgotten.
    """
    with graph.journal.transaction("compile"):
        for each in _entered_from([graph], graph.journal):
            remove_dead(each)
        top = graph.top
        held = getattr(top.owner, "graphs", ())
        if not top.of_calls or not any(top is one for one in held):
            return  # of ops, or a copy that its module does not hold
        live = _entered_from(held)
        used = {place for each in live for place in _places_read(each)}
        kept, unused = _parts(top, used)
        gone = {(id(holder), name) for _, holder, name, _ in unused}
        for module, forgotten in _broken_graphs(kept, live, gone):
            forget_graphs(top, module, forgotten)
        for path, holder, name, value in unused:
            drop_attribute(top, holder, name, ("drop", top, path, name, value))


def _entered_from(graphs: Any, journal: Any = None) -> list[InternalGraph]:
    """Graphs, and all that their calls enter, each once; with `journal` those of this history alone."""
    entered = {id(graph): graph for graph in graphs if journal in (None, graph.journal)}
    todo = list(entered.values())
    while todo:
        for child in child_graphs(todo.pop()):
            if id(child) not in entered and journal in (None, child.journal):
                entered[id(child)] = child
                todo.append(child)
    return list(entered.values())


def _places_read(graph: InternalGraph) -> Iterator[Place]:
    """Every attribute on the way to a layer or tensor that a graph reads."""
    return (
        (id(at), part) for e in graph.exprs(recursive=False) if isinstance(e, GetAttr) for at, part in places_read(e)
    )


def _parts(top: InternalGraph, used: set[Place]) -> tuple[list[Any], list[tuple[str, Any, str, Any]]]:
    """(traced modules that stay, (path of the holder, holder, name, value) of what is not read).

    A traced module with a history of its own, which was assigned, stays as it is.
    """
    kept, unused, seen = [], [], set()
    todo: list[tuple[str, Any]] = [("", top.owner)]
    while todo:
        path, at = todo.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        kept.append(at)
        for name, value in object.__getattribute__(at, "__dict__").items():
            if not issubclass(type(value), (Module, Tensor)):
                continue
            if (id(at), name) not in used:
                unused.append((path, at, name, value))
            elif issubclass(type(value), GraphOwner) and all(g.journal is top.journal for g in value.graphs):
                todo.append((f"{path}.{name}" if path else name, value))
    return kept, unused


def _broken_graphs(kept: list[Any], live: list[InternalGraph], gone: set[Place]) -> Iterator[tuple[Any, list[Any]]]:
    """(module, its graphs that read what goes, or call a graph that does)."""
    alive = {id(graph) for graph in live}
    uncalled = [graph for module in kept for graph in module.graphs if id(graph) not in alive]
    broken: set[int] = set()
    before = -1
    while before < len(broken):
        before = len(broken)
        for graph in uncalled:
            calls = {id(child_graph(expr)) for expr in graph.exprs(recursive=False)}
            if calls & broken or any(place in gone for place in _places_read(graph)):
                broken.add(id(graph))
    for module in kept:
        if affected := [graph for graph in module.graphs if id(graph) in broken]:
            yield module, affected
