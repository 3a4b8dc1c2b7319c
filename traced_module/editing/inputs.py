"""Inputs of graphs that calls enter: the calls get them from new inputs of the graphs around."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import TreeDef, unflatten
from megengine.core.spec import TensorSpec
from megengine.traced_module.editing import expressions
from megengine.traced_module.editing.results import callers
from megengine.traced_module.editing.rewiring import set_call
from megengine.traced_module.ir.expr import Call, Input
from megengine.traced_module.ir.functions import arguments_key, flatten_arguments
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import IN_ANOTHER, assign, unlink

Arguments = tuple[Sequence[Any], dict[str, Any]]


def add_input(graph: InternalGraph, name: str, spec: TensorSpec) -> TensorNode:
    """Append an input to a graph; every call of it gets the value of one new input of the graph that it stands in."""
    calls = callers(graph)
    outer = _outer_inputs(calls, [name], [spec])
    node = expressions.add_input(graph, name, spec)
    if graph.arguments is not None:
        args, kwargs = _example(graph)
        set_signature(graph, (*args, node), kwargs)
    _give(calls, lambda call: ((*call.args, *outer[id(call._graph)]), call.kwargs))
    return node


def set_inputs(graph: InternalGraph, specs: Sequence[TensorSpec], structure: TreeDef) -> list[TensorNode]:
    """Let a graph take these inputs, so nested, in place of those that it has, which are unused; calls get them too."""
    names = [f"args_{i}" for i in range(len(specs))]
    calls = callers(graph)
    outer = _outer_inputs(calls, names, specs)
    made = [expressions.add_input(graph, name, spec) for name, spec in zip(names, specs, strict=True)]
    set_signature(graph, *unflatten(structure, made))

    def arguments_of(call: Call) -> Arguments:
        args, kwargs = unflatten(structure, outer[id(call._graph)])
        return (call.args[0], *args), kwargs

    _give(calls, arguments_of)
    return made


def _outer_inputs(
    calls: Sequence[Call], names: Sequence[str], specs: Sequence[TensorSpec]
) -> dict[int, list[TensorNode]]:
    """New inputs of each graph that these calls stand in, by its id."""
    around = {id(call._graph): call._graph for call in calls}
    return {
        key: [add_input(graph, name, spec) for name, spec in zip(names, specs, strict=True)]
        for key, graph in around.items()
    }


def _give(calls: Sequence[Call], arguments_of: Callable[[Call], Arguments]) -> None:
    for call in calls:
        args, kwargs = arguments_of(call)
        set_call(call, *flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None))


def _example(graph: InternalGraph) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a call with input nodes in place of tensors (without the newest input)."""
    assert graph.arguments is not None
    leaves: list[Any] = [n for n in graph._inputs[:-1] if isinstance(n, TensorNode)]
    for index, value in graph.arguments[1]:
        leaves.insert(index, value)
    return unflatten(graph.arguments[0], leaves)


def set_signature(graph: InternalGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Inputs in the order of a call's arguments; the module takes calls of that form from now on."""
    inputs, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None)
    head = [n for n in graph._inputs if isinstance(n, ModuleNode)]
    dropped = [n for n in graph._inputs if n not in inputs and n not in head]
    for node in dropped:
        if node._users:
            raise GraphError(f"reset_inputs: {node.name!r} is still used; replace it first, with transaction()")
    for node in dropped:
        assert isinstance(node.expr, Input)
        unlink(graph, node.expr)
    assign(graph, graph, "_inputs", (*head, *inputs))
    assign(graph, graph, "arguments", arguments)
    own_call(graph)


def own_call(graph: InternalGraph) -> None:
    """Let the module take calls as this graph says."""
    owner: Any = graph._owner
    if owner is not None and graph.arguments is not None:
        graphs = {k: g for k, g in owner._graphs.items() if g is not graph}
        if arguments_key(graph.arguments) in graphs:
            raise GraphError(f"{graph.qualname} has another graph for calls of that form; flatten the module first")
        assign(graph, owner, "_graphs", {**graphs, arguments_key(graph.arguments): graph}, ("owner", graph))
        assign(graph, owner, "forward_signature", None, IN_ANOTHER)  # arguments are taken as they are given
