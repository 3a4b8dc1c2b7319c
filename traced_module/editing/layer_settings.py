"""Settings of layers that graphs call (`traced.conv1.stride = (1, 1)`): an edit of the graph, as shapes follow them."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from typing import Any

from megengine.core.errors import GraphError, MegEngineError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.inferring import infer_again
from megengine.traced_module.ir.expr import GetAttr
from megengine.traced_module.ir.graph import InternalGraph, alive
from megengine.traced_module.ir.node import ModuleNode
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.primitives import assign


def graphs_of_modules() -> list[InternalGraph]:
    """Graphs that belong to a module, of all models."""
    return [graph for graph in list(alive) if graph._owner is not None]


def add_remedy(error: MegEngineError, what: str) -> None:
    """Say in an error what was refused, and what to do."""
    error.args = (
        f"{what}: {error.args[0] if error.args else error}; nothing was changed; set it with what depends on it in "
        "`with graph.transaction():`, or in a copy (traced.clone())",
    )


def _uses(layer: Module) -> list[ModuleNode]:
    """Nodes of all graphs that stand for a layer, or for one that holds it."""
    found = []
    for graph in graphs_of_modules():
        reads = [expr.output for expr in graph._order if isinstance(expr, GetAttr)]
        found += [n for n in reads if isinstance(n, ModuleNode) and _is_in(layer, _module_of(n))]
    return found


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


def set_in_graphs(layer: Module, name: str, value: Any) -> bool:
    """Set an attribute of a layer by an edit of the graphs that call it; False if there is none.

    Raises what the call that becomes impossible raises; nothing is changed then.
    """
    if not _is_done(layer, name, value):
        gc.collect()  # models that nobody has any more do not count
    uses = _uses(layer)
    if not uses:
        return False
    if object.__getattribute__(layer, "__dict__")[name] is value:
        return True
    try:
        _set(layer, name, value, uses)
    except MegEngineError as error:
        where = ", ".join(dict.fromkeys(node.qualname for node in uses))
        shown = type(value).__name__ if isinstance(value, (Module, Tensor)) else repr(value)
        add_remedy(error, f"{name} = {shown} of {where}, a {type(layer).__name__} that a traced module calls")
        raise
    return True


def _is_done(layer: Module, name: str, value: Any) -> bool:
    """Try it, and keep nothing of an error, which would hold the models."""
    uses = _uses(layer)
    try:
        _set(layer, name, value, uses)
    except MegEngineError:
        return False
    return True


def _set(layer: Module, name: str, value: Any, uses: list[ModuleNode]) -> None:
    tops: dict[int, Any] = {}
    for node in uses:
        tops.setdefault(id(node.graph._journal), (node.graph._top, []))[1].append(node)
    with ExitStack() as steps:
        for top, _ in tops.values():
            steps.enter_context(top._edit("set_layer"))
        for _, nodes in tops.values():
            node = nodes[0]
            assign(node.graph, layer, name, value, ("setting", node.graph, node, layer, name, value))
        for _, nodes in tops.values():
            for node in nodes:
                infer_again(node.graph, node.users)
