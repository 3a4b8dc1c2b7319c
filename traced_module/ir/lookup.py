"""Nodes by name, path (`layer1.0.relu_out`) and qualname (`ResNet.layer1.0.[func_relu]`), in graphs and submodules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from megengine.core.errors import GraphError, OptionError, nearest
from megengine.core.text import counted
from megengine.module import Module
from megengine.traced_module.ir.expr import GetAttr, Input
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.ir.provenance import graph_path

_PLACE = re.compile(r"(.*)\[(\d+)\]")


def node_path(node: Node) -> str:
    """Path of the module whose graph makes a node, and its name.

    Where the module has several graphs, the place of that graph among them stands behind the path of the module:
    `blocks.0[1].relu_out`.
    """
    where = graph_path(node.graph) + graph_place(node.graph)
    return f"{where}.{node.name}" if where else node.name


def graph_place(graph: Any) -> str:
    """`[1]` for the second of several graphs of a module below the outermost one; else nothing."""
    graphs = getattr(graph._owner, "graphs", ())
    if graph._top is graph or len(graphs) < 2:
        return ""
    return next((f"[{i}]" for i, one in enumerate(graphs) if one is graph), "")


def known_as(node: Node) -> tuple[str, ...]:
    """What a node is found by beside its name."""
    top = node.graph._top.qualname
    below = node.qualname[len(top) + 1 :] if node.qualname.startswith(f"{top}.") else node.qualname
    return node_path(node), node.qualname, below


def attribute_path(node: Node) -> str:
    """Path of what a node reads, below the module of its graph."""
    parts: list[str] = []
    while isinstance(node._expr, GetAttr):
        parts.insert(0, node._expr.name)
        node = node._expr._inputs[0]
    return ".".join(parts)


def node_of(graph: Any, name: str) -> Any:
    """The node of a name in a graph, or of a path or qualname in it and in the graphs that it enters.

    Raises:
        GraphError: there is none, or there are several.
    """
    if not isinstance(name, str):
        raise GraphError(f"graph {graph.name!r}: got {name!r}, a {type(name).__name__}; expected the name of a node")
    node = graph._names.get(name)
    if node is not None:
        return node
    several = _found(graph, name)
    if not several:
        raise GraphError(f"graph {graph.name!r} has no node {name!r}{nearest_node(graph, name)}")
    if len(several) > 1:
        raise GraphError(_ambiguous(name, several))
    return several[0]


def is_name(graph: Any, name: str) -> bool:
    """Whether a node of the graph, or of one that it enters, is found under a name, path or qualname."""
    return name in graph._names or bool(_found(graph, name))


def _found(graph: Any, name: str) -> list[Node]:
    return _copied(graph, _at_path(graph, name)) or _among(graph.nodes(), name)


def _copied(graph: Any, nodes: list[Node]) -> list[Node]:
    """These nodes; where no call enters their graph, the module was flattened: those that a graph has in their place.

    That is known where it has all values of the same qualname, once each.
    """
    source = nodes[0].graph if nodes else graph
    if source is graph or any(e.top_graph is source for e in graph.exprs()):
        return nodes
    alike, here = (
        [n for n in one.nodes(recursive=False) if n.qualname == nodes[0].qualname] for one in (source, graph)
    )
    return [b for a, b in zip(alike, here, strict=True) if a is nodes[0]] if len(alike) == len(here) else nodes


def _among(nodes: Iterable[Node], name: str) -> list[Node]:
    """Nodes of a path or qualname. A module is known by the node that reads it, not as `self` of its own graph."""
    matching = [node for node in nodes if name in known_as(node)]
    return [n for n in matching if not (isinstance(n, ModuleNode) and isinstance(n.expr, Input))] or matching


def own_node(graph: Any, name: str) -> Any:
    """The node of that name in this very graph: names in files are no paths. Raises GraphError if there is none."""
    if (node := graph._names.get(name)) is None:
        raise GraphError(f"graph {graph.name!r} has no node {name!r}{nearest_node(graph, name)}")
    return node


def _at_path(graph: Any, path: str) -> list[Node]:
    """Nodes at a path below the module of a graph, or below the outermost one.

    The modules on the way are read as attributes, so that a shared one is found under each of its names.
    """
    where, _, name = str(path).rpartition(".")
    if not where:
        return []
    for owner in (graph._owner, graph._top._owner):
        for graphs in _graphs_at(owner, where):
            matching = [node for one in graphs if (node := one._names.get(name)) is not None]
            if matching:
                return matching
    return []


def graphs_at(graph: Any, path: str) -> tuple[Any, ...]:
    """The graphs of the submodule at a path below the module of a graph; `path[1]` is its second one. None without."""
    return tuple(one for graphs in _graphs_at(graph._owner, path) for one in graphs)


def _graphs_at(owner: Any, where: str) -> Iterator[Sequence[Any]]:
    place = _PLACE.fullmatch(where)
    at = owner
    for part in (where if place is None else place[1]).split("."):
        own = object.__getattribute__(at, "__dict__") if issubclass(type(at), Module) else {}
        if part not in own:
            return
        at = own[part]
    graphs = getattr(at, "_graphs", None)
    if isinstance(graphs, dict):
        every = tuple(graphs.values())
        yield every if place is None else every[int(place[2]) : int(place[2]) + 1]


def node_named(graphs: Sequence[Any], name: str, first: Any | None = None) -> Any:
    """The node of a name, a path or a qualname in these graphs and those that they enter.

    Names of these graphs themselves (only of `first`, if it is given) come before those of submodules, which do for a
    name that only one of them has.

    Raises:
        OptionError: there is none, or there are several; the nearest name or the paths are given.
    """
    preferred = graphs if first is None else [first]
    own = [node for graph in preferred if (node := graph._names.get(name)) is not None]
    candidates = own or [node for graph in preferred[:1] for node in _copied(graph, _at_path(graph, name))]
    if not candidates:
        every = list({id(node): node for graph in graphs for node in graph.nodes()}.values())
        candidates = _among(every, name) or [n for n in every if n.name == name]
        if not candidates:
            known = [text for node in every for text in (node.name, *known_as(node))]
            where = preferred[0].name if preferred else "the module"
            below = next(filter(None, (_inside_an_op(graph, name) for graph in graphs)), "")
            raise OptionError(f"{where} has no value {name!r}{below or _of_pattern(name) or nearest(name, known)}")
    if len(candidates) > 1:
        raise OptionError(_ambiguous(name, candidates))
    return candidates[0]


def _ambiguous(name: str, candidates: Sequence[Node]) -> str:
    paths = ", ".join(dict.fromkeys(map(node_path, candidates[:6])))
    return f"{counted(len(candidates), 'value')} are called {name!r}; give one by its path: {paths}"


def nearest_node(graph: Any, name: str) -> str:
    """The end of a message about a name that no node of a graph has: the nearest one, in the graphs it enters too."""
    if below := _inside_an_op(graph, name):
        return below
    inside = [node for node in graph.nodes() if node.graph is not graph]
    same = [node_path(node) for node in inside if name == node.name]
    if same:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        return f"; a submodule has it: {same[0]!r}{more}; give that path, or use get_node_by_name"
    known = [*graph._names.nodes(), *(text for n in inside for text in known_as(n)[:2])]
    return _of_pattern(name) or nearest(name, known)


def _of_pattern(name: str) -> str:
    """The end of a message about a name that is a pattern."""
    return "; one name is taken here, and patterns by graph.get_node_by_name" if "*" in name else ""


def _inside_an_op(graph: Any, name: str, where: str = "") -> str:
    """The end of a message about a name, or path, of a value of a graph that an op runs; "" for other names."""
    for expr in graph.exprs():
        for attribute, value in getattr(expr, "_attrs", {}).items():
            inner = getattr(value, "graph", None)
            if inner is None:
                continue
            path = f"{where}{expr.name}.{attribute}."
            if name in inner._names or (name.startswith(path) and name[len(path) :] in inner._names):
                return (
                    f"; it stands in the graph {attribute!r} that the op {expr.name!r} runs, which is never changed: "
                    "edit a clone of that graph, and give the op a Body of it with set_attrs"
                )
            if below := _inside_an_op(inner, name, path):
                return below
    return ""
