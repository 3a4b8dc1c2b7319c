"""Assignments that edit graphs: `traced.fc = M.Linear(512, 10)`, and settings of layers: `traced.conv1.stride = 2`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from megengine.core.errors import GraphError, MegEngineError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import places_read
from megengine.traced_module.editing.inferring import infer_again
from megengine.traced_module.editing.parts import put_attribute
from megengine.traced_module.ir.expr import GetAttr
from megengine.traced_module.ir.graph import InternalGraph, alive
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.primitives import assign

Edit = Callable[[Sequence[Any]], None]  # takes the nodes that read what changes


def _edited(
    find: Callable[[], Sequence[Any]], edit: Edit, what: str, described: Callable[[Sequence[Any]], str]
) -> bool:
    """Edit every model whose nodes `find()` gives, all or none; False if there are no such nodes.

    Raises what the call that becomes impossible raises, with `described(nodes)` before it.
    """
    nodes = find()
    if not nodes or _is_done(nodes, edit, what):
        return bool(nodes)
    del nodes
    gc.collect()  # models that nobody has any more do not count
    nodes = find()
    if not nodes:
        return False
    try:
        _edit_models(nodes, edit, what)
    except MegEngineError as error:
        error.args = (
            f"{described(nodes)}: {error.args[0] if error.args else error}; nothing was changed; set it with what "
            "depends on it in `with graph.transaction():`, or in a copy (traced.clone())",
        )
        raise
    return True


def _is_done(nodes: Sequence[Any], edit: Edit, what: str) -> bool:
    """Try it, and keep nothing of an error, which would hold the models."""
    try:
        _edit_models(nodes, edit, what)
    except MegEngineError:
        return False
    return True


def _edit_models(nodes: Sequence[Any], edit: Edit, what: str) -> None:
    """Edit each model that the nodes are of, in one transaction each, which all end together."""
    models: dict[int, list[Any]] = {}
    for node in nodes:
        models.setdefault(id(node.graph.journal), []).append(node)
    with ExitStack() as transactions:
        for below in models.values():
            transactions.enter_context(below[0].graph.top.journal.transaction(what))
        for below in models.values():
            edit(below)
        for node in nodes:
            infer_again(node.graph, node.users)


def _graphs_of_modules() -> list[InternalGraph]:
    return [graph for graph in list(alive) if graph.owner is not None]


def assigned(holder: Module, name: str, old: Any, value: Any) -> bool:
    """Put a layer or tensor in the place of one that graphs read; False where none does, and for tensors of one spec.

    Raises:
        GraphError: the graphs read a tensor, and a module or anything else is given; or they read what is inside.
        MegEngineError: what a call that becomes impossible raises; nothing is changed then.
    """
    if isinstance(old, Tensor) and isinstance(value, Tensor) and old.spec == value.spec:
        return False  # another weight of the same shape is no edit
    wanted = Tensor if isinstance(old, Tensor) else Module
    if not isinstance(value, wanted) and (reads := _reads(holder, name)):
        raise GraphError(
            f"{name} = {type(value).__name__}: graph {reads[0].graph.name!r} reads a {wanted.__name__} there; give "
            "another one, or replace its uses first"
        )

    def edit(nodes: Sequence[Any]) -> None:
        first = nodes[0]
        if isinstance(value, Module):
            first.graph.replace_module(first, value)
            return
        put_attribute(first.graph, first.expr.inputs[0], first.expr.name, value)
        for node in nodes:
            assign(node.graph, node, "_spec", value.spec)

    def described(nodes: Sequence[Any]) -> str:
        return f"{name} = {type(value).__name__} of {nodes[0].graph.qualname}"

    return _edited(lambda: _reads(holder, name, inside=isinstance(value, Module)), edit, "assign", described)


def check_deletable(holder: Module, name: str) -> None:
    """Refuse to take away what graphs read."""
    if reads := _reads(holder, name):
        users = ", ".join(user.name for node in reads for user in node.users) or "nothing"
        raise GraphError(
            f"del {name}: {reads[0].qualname} is read by graph {reads[0].graph.name!r} and used by {users}; replace "
            "its uses, then graph.compile() takes it away"
        )


def _reads(holder: Module, name: str, *, inside: bool = False) -> list[Node]:
    """Nodes of all graphs that read an attribute.

    Raises GraphError if some read what is inside of it by its path; with `inside` only if no other reads it, for
    `replace_module` looks at these.
    """
    reads, within = [], ""
    for graph in _graphs_of_modules():
        for expr in [e for e in graph.exprs(recursive=False) if isinstance(e, GetAttr)]:  # few of many
            places = list(places_read(expr))
            if not any(at is holder and part == name for at, part in places):
                continue
            at, part = places[-1]
            if at is holder and part == name:
                reads.append(expr.output)
            else:
                within = f"{name!r} holds {expr.name!r}, which graph {graph.name!r} reads"
    if within and not (inside and reads):
        raise GraphError(f"{within}; replace the layers inside it")
    return reads


def set_in_graphs(layer: Module, name: str, value: Any) -> bool:
    """Set an attribute of a layer by an edit of the graphs that call it; False if there is none.

    Raises what the call that becomes impossible raises; nothing is changed then.
    """

    def edit(nodes: Sequence[Any]) -> None:
        node = nodes[0]
        assign(node.graph, layer, name, value, ("setting", node.graph, node, layer, name, value))

    def described(nodes: Sequence[Any]) -> str:
        where = ", ".join(dict.fromkeys(node.qualname for node in nodes))
        text = type(value).__name__ if isinstance(value, (Module, Tensor)) else repr(value)
        return f"{name} = {text} of {where}, a {type(layer).__name__} that a traced module calls"

    return _edited(lambda: _uses(layer), edit, "set_layer", described)


def _uses(layer: Module) -> list[ModuleNode]:
    """Nodes of all graphs that stand for a layer, or for one that holds it."""
    uses = []
    for graph in _graphs_of_modules():
        reads = [expr.output for expr in graph.exprs(recursive=False) if isinstance(expr, GetAttr)]
        uses += [n for n in reads if isinstance(n, ModuleNode) and _is_in(layer, _module_of(n))]
    return uses


def _module_of(node: ModuleNode) -> Any:
    try:
        return node.owner
    except GraphError:  # of a graph that is being made, or that nothing calls and whose layers went
        return None


def _is_in(layer: Module, module: Any) -> bool:
    if module is layer:
        return True
    return (
        isinstance(module, Module)
        and not isinstance(module, GraphOwner)
        and any(child is layer for child in module.modules())
    )
