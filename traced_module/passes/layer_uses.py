"""Where layers stand and who reads them: what a pass must know before it puts another layer in a place.

A place is an attribute of a module. The same place may be read by several graphs: a module has a graph for each kind of
arguments, an outer graph may reach into a submodule, and two submodules may be one object. A layer that is exchanged
for one reader is exchanged for all of them.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from megengine.module import Module
from megengine.traced_module.ir.expr import CallMethod, GetAttr, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode, module_of
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.ir.queries import child_graphs

Place = tuple[int, str]  # id of the module that holds the attribute, name


def all_graphs(graph: InternalGraph) -> list[InternalGraph]:
    """Every graph that runs when the traced module is called that a graph is part of.

    A flattened module keeps submodules with graphs that nothing calls any more: these do not count.
    """
    top = graph.top
    same = [g for g in getattr(top.owner, "graphs", ()) if g.journal is top.journal]
    return graphs_below(top, *same, graph)


def graphs_below(*graphs: InternalGraph) -> list[InternalGraph]:
    """Graphs and all that their calls enter, each once."""
    below = {id(g): g for g in graphs}
    todo = list(below.values())
    while todo:
        for child in child_graphs(todo.pop()):
            if id(child) not in below:
                below[id(child)] = child
                todo.append(child)
    return list(below.values())


def everywhere(run: Callable[[InternalGraph], bool]) -> Callable[[InternalGraph], bool]:
    """A transform of a graph and of all that its calls enter; what it leaves unused is removed."""

    @functools.wraps(run)
    def each(graph: InternalGraph) -> bool:
        changed = False
        for one in graphs_below(graph):
            if run(one):
                remove_dead(one)
                changed = True
        return changed

    return each


def reads_of_places(graph: InternalGraph) -> dict[Place, list[GetAttr]]:
    """All reads of each place that is on the way to a layer or tensor, in every graph of the traced module."""
    reads: dict[Place, list[GetAttr]] = {}
    for each in all_graphs(graph):
        for expr in each.exprs(recursive=False):
            if isinstance(expr, GetAttr):
                for place in _places(each, expr):
                    reads.setdefault(place, []).append(expr)
    return reads


def _places(graph: InternalGraph, expr: GetAttr) -> Iterator[Place]:
    at: Any = module_of(expr.inputs[0])
    for part in expr.name.split("."):
        yield id(at), part
        if isinstance(at, (list, tuple)):
            at = at[int(part)]
        else:
            at = at[part] if isinstance(at, dict) else object.__getattribute__(at, "__dict__")[part]


def place_of(node: ModuleNode) -> Place:
    """The place of the layer that a node reads."""
    assert isinstance(node.expr, GetAttr)
    *_, last = _places(node.graph, node.expr)
    return last


def has_hooks(module: Module) -> bool:
    """True if a call of the module does more than its forward."""
    own = object.__getattribute__(module, "__dict__")
    return bool(own.get("_forward_hooks") or own.get("_forward_pre_hooks"))


def only_call(read: GetAttr) -> CallMethod | None:
    """The one call of the layer that a GetAttr reads; None if it is used in another way, or not once."""
    node = read.output
    if not isinstance(node, ModuleNode) or len(node.users) != 1:
        return None
    call = node.users[0]
    if not isinstance(call, CallMethod) or not is_call_module(call) or call.inputs[0] is not node:
        return None
    return None if has_hooks(node.owner) else call


def only_user(node: Node) -> Any:
    """The one expression that uses a value; None if there are several, or the graph returns it."""
    if len(node.users) != 1 or any(node is n for n in node.graph.outputs):
        return None
    return node.users[0]


Renaming = list[tuple[TensorNode, str]]  # new values, and the names of those whose places they take


def take_names(graph: InternalGraph, renaming: Renaming) -> None:
    """Let new values be called as those that they replaced, where these are gone now and the new ones are not.

    A new value may have for now the name that another one shall have: each is renamed when its name is free, and of a
    circle one gives way.
    """
    names = graph.names
    waiting = {name: node for node, name in reversed(renaming) if names.get(node.name) is node}
    free = deque(name for name in waiting if names.get(name) is None)
    while waiting:
        while free:
            name = free.popleft()
            if (node := waiting.pop(name, None)) is not None and names.get(name) is None:
                free.append(node.name)
                graph.rename(node, name)
        moving = {id(node) for node in waiting.values()}
        circle = next((name for name in waiting if id(names.get(name)) in moving), None)
        if circle is None:
            return
        node, holder = waiting.pop(circle), names.get(circle)
        if holder is not None and holder is not node:
            waiting[circle] = node
            graph.rename(holder, names.unique(circle))
            free.append(circle)
