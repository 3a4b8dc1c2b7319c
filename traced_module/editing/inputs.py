"""Inputs of graphs that calls enter: the calls get them from new inputs of the graphs around."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from megengine.core.pytree import TreeDef, unflatten
from megengine.core.spec import TensorSpec
from megengine.traced_module.editing.results import callers
from megengine.traced_module.ir.expr import Arguments as CallArguments
from megengine.traced_module.ir.expr import Call
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.tracing.calls import flatten_arguments

if TYPE_CHECKING:
    from megengine.traced_module.ir.graph import InternalGraph

Arguments = tuple[Sequence[Any], dict[str, Any]]
TOLD = ("nothing",)  # an edit log has this change as a part of another


def add_input(graph: InternalGraph, name: str, spec: TensorSpec) -> TensorNode:
    """Append an input to a graph; every call of it gets the value of one new input of the graph that it stands in."""
    calls = callers(graph)
    outer = _outer_inputs(calls, [name], [spec])
    node = graph.add_input(name, spec)
    if graph.arguments is not None:
        args, kwargs = graph._example()
        graph._set_signature((*args, node), kwargs)
    _give(calls, lambda call: ((*call.args, *outer[id(call._graph)]), call.kwargs))
    return node


def set_inputs(graph: InternalGraph, specs: Sequence[TensorSpec], structure: TreeDef) -> list[TensorNode]:
    """Let a graph take these inputs, so nested, in place of those that it has, which are unused; calls get them too."""
    names = [f"args_{i}" for i in range(len(specs))]
    calls = callers(graph)
    outer = _outer_inputs(calls, names, specs)
    made = [graph.add_input(name, spec) for name, spec in zip(names, specs, strict=True)]
    graph._set_signature(*unflatten(structure, made))

    def given(call: Call) -> Arguments:
        args, kwargs = unflatten(structure, outer[id(call._graph)])
        return (call.args[0], *args), kwargs

    _give(calls, given)
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
        inputs, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None)
        set_call(call._graph, call, inputs, arguments)


def set_call(graph: InternalGraph, call: Call, inputs: Sequence[Node], arguments: CallArguments) -> None:
    """Let a call of a graph have these arguments, which are checked."""
    graph._use(call, inputs, ("arguments", graph, call, inputs, arguments))
    graph._set(call, "_arg_def", arguments[0], TOLD)
    graph._set(call, "_const_val", arguments[1], TOLD)
