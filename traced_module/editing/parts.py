"""Modules and tensors that a graph reads: new ones, others in their places, and the end of what nothing reads."""

from __future__ import annotations

from typing import Any

from megengine.core.errors import GraphError, NameInUseError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.editing.attaching import attach, attribute_at
from megengine.traced_module.editing.checking import check_owned
from megengine.traced_module.editing.composites import (
    calls_to_renew,
    check_not_read_inside,
    give_arguments,
    is_composite,
    replacement,
)
from megengine.traced_module.editing.inferring import infer_again
from megengine.traced_module.ir.expr import GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.names import identifier, without_count
from megengine.traced_module.ir.node import ModuleNode
from megengine.traced_module.ir.primitives import IN_ANOTHER, assign_in_module
from megengine.traced_module.traced import STATE_NAMES, TracedModule


def set_attribute(node: ModuleNode, name: str, value: Any) -> str:
    """Give the module behind a node a new submodule or tensor, to be used by expressions inserted later.

    Of a traced module it gets a copy with the same layers and tensors, whose edits are part of this history. Any
    other module that is no layer is traced when a node that reads it is called. Where the module has a submodule
    or tensor of that name, the new one gets `_1`. Returns the name.
    """
    graph = node.top_graph
    if not isinstance(value, Tensor):
        _check_module(graph, f"{name!r} of {node.name!r}", value, "a Module or a tensor")
    if name != identifier(name):
        raise GraphError(f"{name!r} is not an attribute name; try {identifier(name)!r}")
    free = free_attribute(node, name)
    with graph.journal.transaction("set_attribute"):
        put_attribute(graph, node, free, _own(graph, node, free, value))
    if graph._inserting is not None:
        graph._inserting.was_set(node, name, free)
    return free


def replace_module(graph: InternalGraph, node: ModuleNode, module: Any) -> None:
    check_owned(graph, "replace_module", [node])
    if not isinstance(node, ModuleNode) or not isinstance(node.expr, GetAttr):
        raise GraphError(
            f"replace_module: {node!r} does not read a submodule; give the node of a layer, as get_module_by_type "
            "finds it"
        )
    _check_module(graph, node.qualname, module)
    check_not_read_inside(graph, node, module)
    with graph.journal.transaction("replace_module"):
        calls = calls_to_renew(graph, node)
        new = _own(graph, node, "", module)
        if is_composite(module):
            new = replacement(graph, node, module)
        put_attribute(graph, node.expr.inputs[0], node.expr.name, new)
        give_arguments(calls)
        for each in {id(call.top_graph): call.top_graph for call in calls}.values():
            infer_again(each, [call for call in calls if call.top_graph is each])


def put_attribute(graph: InternalGraph, node: ModuleNode, path: str, value: Any) -> None:
    holder, name, was = attribute_at(node, path)
    if is_composite(value):  # the log has the module that is made of it, in its first call
        record: tuple[Any, ...] = IN_ANOTHER
    else:
        record = ("module", graph, node, path, None if is_composite(was) else was, value)
    assign_in_module(graph, holder, name, value, record)


def _own(graph: InternalGraph, node: ModuleNode, name: str, value: Any) -> Any:
    """What becomes the attribute of a module: a traced module is copied, layers and tensors are shared."""
    if not isinstance(value, TracedModule):
        return value
    above = [node.expr.name] if isinstance(node.expr, GetAttr) else []
    return _attached(graph, ".".join([*above, name] if name else above), value)


def _check_module(graph: InternalGraph, what: str, module: Any, kinds: str = "a Module") -> None:
    if not isinstance(module, Module):
        raise GraphError(f"{what}: expected {kinds}, got {type(module).__name__}")
    if module is graph.owner:
        raise GraphError(f"{what}: the module of the graph {graph.qualname} cannot be a part of itself")


def free_attribute(node: ModuleNode, name: str) -> str:
    """A name under which the module of a node can get a submodule or tensor: this one, or with a count behind it.

    Raises:
        NameInUseError: modules or nodes themselves have an attribute of that name.
    """
    owner = node.owner
    own = object.__getattribute__(owner, "__dict__")
    free, count = name, 0
    while free in own and free not in STATE_NAMES and isinstance(own[free], (Module, Tensor, list, tuple, dict)):
        count += 1
        free = f"{without_count(name)}_{count}"
    if free in own or hasattr(type(owner), free):
        raise NameInUseError(f"{node.qualname} already has an attribute {free!r}; choose another name")
    if hasattr(type(node), free):
        raise NameInUseError(f"every node has an attribute {free!r} of its own; choose another name")
    return free


def _attached(graph: InternalGraph, path: str, module: TracedModule) -> TracedModule:
    """A copy of a traced module to be the attribute at a path below the module of a graph.

    Layers and tensors are shared with `module`; its graphs get ids that are not in use, qualnames below that of
    `graph`, and edits of them stand in one log with those of `graph`.
    """
    clone = module._cloned(None)
    if clone.graphs:
        counts = clone.graphs[0].journal.counts
        attach(graph, path, clone)
        graph.journal.skip(counts)
    return clone
