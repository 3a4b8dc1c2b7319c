"""Assignments to traced modules (`traced.fc = M.Linear(512, 10)`): an edit of the graphs that read the attribute."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from megengine.core.errors import GraphError, MegEngineError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.inferring import infer_again
from megengine.traced_module.editing.layer_settings import add_remedy, graphs_of_modules
from megengine.traced_module.editing.parts import put_attribute
from megengine.traced_module.ir.expr import GetAttr
from megengine.traced_module.ir.node import Node, module_of
from megengine.traced_module.ir.primitives import assign


def assigned(holder: Module, name: str, old: Any, value: Any) -> bool:
    """Put a layer or tensor in the place of one that graphs read; False where none does, and for tensors of one spec.

    Raises:
        GraphError: the graphs read a tensor, and a module or anything else is given; or they read what is inside.
        MegEngineError: what a call that becomes impossible raises; nothing is changed then.
    """
    if isinstance(old, Tensor) and isinstance(value, Tensor) and old.spec == value.spec:
        return False  # another weight of the same shape is no edit
    reads = _reads(holder, name)
    if not reads:
        return False
    wanted = Tensor if isinstance(old, Tensor) else Module
    if not isinstance(value, wanted):
        raise GraphError(
            f"{name} = {type(value).__name__}: graph {reads[0].graph.name!r} reads a {wanted.__name__} there; give "
            "another one, or replace its uses first"
        )
    if _is_done(reads, value):
        return True
    gc.collect()  # models that nobody has any more do not count
    try:
        _assign(_reads(holder, name), value)
    except MegEngineError as error:
        add_remedy(error, f"{name} = {type(value).__name__} of {reads[0].graph.qualname}")
        raise
    return True


def check_deletable(holder: Module, name: str) -> None:
    """Refuse to take away what graphs read."""
    if reads := _reads(holder, name):
        users = ", ".join(user.name for node in reads for user in node.users) or "nothing"
        raise GraphError(
            f"del {name}: {reads[0].qualname} is read by graph {reads[0].graph.name!r} and used by {users}; replace "
            "its uses, then graph.compile() takes it away"
        )


def _is_done(reads: list[Node], value: Any) -> bool:
    """Try it, and keep nothing of an error, which would hold the models."""
    try:
        _assign(reads, value)
    except MegEngineError:
        return False
    return True


def _assign(reads: list[Node], value: Any) -> None:
    by_model: dict[int, list[Node]] = {}
    for node in reads:
        by_model.setdefault(id(node.graph._journal), []).append(node)
    with ExitStack() as steps:
        for nodes in by_model.values():
            steps.enter_context(nodes[0].graph._top._edit("assign"))
        for nodes in by_model.values():
            _replace(nodes, value)


def _replace(nodes: list[Any], value: Any) -> None:
    first = nodes[0]
    if isinstance(value, Module):
        first.graph.replace_module(first, value)
    else:
        put_attribute(first.graph, first.expr.inputs[0], first.expr.name, value)
        for node in nodes:
            assign(node.graph, node, "_spec", value.spec)
    for node in nodes if isinstance(value, Tensor) else nodes[1:]:
        infer_again(node.graph, node.users)


def _reads(holder: Module, name: str) -> list[Node]:
    """Nodes of all graphs that read an attribute. Raises GraphError if some read what is inside of it by its path."""
    found = []
    for graph in graphs_of_modules():
        for expr in graph._order:
            places = list(_places(expr)) if isinstance(expr, GetAttr) else []
            if not any(at is holder and part == name for at, part in places):
                continue
            at, part = places[-1]
            if at is not holder or part != name:
                raise GraphError(
                    f"{name!r} holds {expr.name!r}, which graph {graph.name!r} reads; replace the layers inside it"
                )
            found.append(expr.output)
    return found


def _places(expr: GetAttr) -> Iterator[tuple[Any, str]]:
    """Every module on the way to what is read, with the attribute by which the way goes on."""
    try:
        at = module_of(expr.inputs[0])
    except GraphError:  # of a graph that nothing calls and whose layers went
        return
    for part in expr.name.split("."):
        yield at, part
        at = object.__getattribute__(at, "__dict__").get(part) if isinstance(at, Module) else None
