"""Inputs and outputs of graphs, and values of submodules as values of the graphs around them.

The calls of a graph get new inputs of it from new inputs of the graphs around.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from megengine.core.dtype import as_dtype
from megengine.core.errors import GraphError, ShapeError
from megengine.core.pytree import flatten, unflatten
from megengine.core.spec import TensorSpec
from megengine.tensor import Tensor
from megengine.traced_module.editing.checking import check_owned
from megengine.traced_module.editing.expressions import add_input
from megengine.traced_module.editing.results import beside_one_more, callers, set_results, value_in
from megengine.traced_module.editing.rewiring import set_call
from megengine.traced_module.ir.expr import Call, Expr
from megengine.traced_module.ir.functions import arguments_key, flatten_arguments, unflatten_arguments
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import IN_ANOTHER, assign, drop_former_input, is_among
from megengine.traced_module.tracing.calls import Static

Arguments = tuple[Sequence[Any], dict[str, Any]]


def add_input_node(
    graph: InternalGraph, shape: Sequence[int], dtype: Any = "float32", name: str = "args"
) -> TensorNode:
    try:
        lengths = tuple(map(operator.index, shape))
    except TypeError:
        lengths = (-1,)
    if min(lengths, default=0) < 0:
        raise ShapeError(f"add_input_node: shape is {shape!r}; expected lengths, 0 or more each")
    if not isinstance(name, str):
        raise GraphError(f"add_input_node: name is {name!r}; expected a text")
    with graph.journal.transaction("add_input_node"):
        return _add_input(graph, name, TensorSpec(lengths, as_dtype(dtype)))


def add_output_node(graph: InternalGraph, node: TensorNode | str, *, through: Expr | None = None) -> None:
    with graph.journal.transaction("add_output_node"):
        value = value_in(graph, node, what="add_output_node", through=through)
        check_owned(graph, "add_output_node", [value])
        set_results(graph, (*graph.outputs, value), beside_one_more(graph))


def reset_outputs(graph: InternalGraph, outputs: Any) -> None:
    leaves, structure = flatten(outputs)
    if any(isinstance(leaf, TensorNode) for leaf in leaves):  # None is no value: it is part of the nesting
        supply = iter([Static(None) if leaf is None else leaf for leaf in leaves])
        leaves, structure = flatten(unflatten(structure, supply))
    if not leaves or not all(isinstance(n, (TensorNode, str)) for n in leaves):
        check_owned(graph, "reset_outputs", leaves)
        wrong = next((n.name for n in leaves if not isinstance(n, TensorNode)), None)
        got = "nothing" if wrong is None else f"{wrong!r}, which is a module"
        raise GraphError(f"reset_outputs: got {got}; expected tensor nodes, one or more, nested in any way")
    with graph.journal.transaction("reset_outputs"):
        leaves = [value_in(graph, node, what="reset_outputs") for node in leaves]
        check_owned(graph, "reset_outputs", leaves)
        set_results(graph, leaves, structure)


def value_of(graph: InternalGraph, node: TensorNode | str, *, through: Expr | None = None) -> TensorNode:
    with graph.journal.transaction("value_of"):
        value = value_in(graph, node, what="value_of", through=through)
        check_owned(graph, "value_of", [value])
    return value


def reset_inputs(graph: InternalGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[TensorNode]:
    leaves, structure = flatten((args, kwargs))
    if wrong := [leaf for leaf in leaves if not isinstance(leaf, Tensor)]:
        raise GraphError(f"reset_inputs: expected tensors, got {type(wrong[0]).__name__}")
    with graph.journal.transaction("reset_inputs"):
        specs = [leaf.spec for leaf in leaves]
        names = ["args"] * len(specs)
        calls = callers(graph)
        outer = _outer_inputs(calls, names, specs)
        inputs = [add_input(graph, name, spec) for name, spec in zip(names, specs, strict=True)]
        set_signature(graph, *unflatten(structure, inputs))

        def arguments_of(call: Call) -> Arguments:
            args, kwargs = unflatten(structure, outer[id(call.top_graph)])
            return (call.args[0], *args), kwargs

        _give(calls, arguments_of)
        return inputs


def _add_input(graph: InternalGraph, name: str, spec: TensorSpec) -> TensorNode:
    """Append an input to a graph; every call of it gets the value of one new input of the graph that it stands in."""
    calls = callers(graph)
    outer = _outer_inputs(calls, [name], [spec])
    node = add_input(graph, name, spec)
    if graph.arguments is not None:
        args, kwargs = unflatten_arguments(graph.arguments, [n for n in graph.inputs[:-1] if isinstance(n, TensorNode)])
        set_signature(graph, (*args, node), kwargs)
    _give(calls, lambda call: ((*call.args, *outer[id(call.top_graph)]), call.kwargs))
    return node


def _outer_inputs(
    calls: Sequence[Call], names: Sequence[str], specs: Sequence[TensorSpec]
) -> dict[int, list[TensorNode]]:
    """New inputs of each graph that these calls stand in, by its id."""
    around = {id(call.top_graph): call.top_graph for call in calls}
    return {
        key: [_add_input(graph, name, spec) for name, spec in zip(names, specs, strict=True)]
        for key, graph in around.items()
    }


def _give(calls: Sequence[Call], arguments_of: Callable[[Call], Arguments]) -> None:
    for call in calls:
        args, kwargs = arguments_of(call)
        set_call(call, *flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None))


def set_signature(graph: InternalGraph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Inputs in the order of a call's arguments; the module takes calls of that form from now on."""
    inputs, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None)
    head = [n for n in graph.inputs if isinstance(n, ModuleNode)]
    former = [n for n in graph.inputs if not is_among(n, inputs) and not is_among(n, head)]
    assign(graph, graph, "_inputs", (*head, *inputs))
    for node in former:
        drop_former_input(graph, node)
    assign(graph, graph, "arguments", arguments)
    own_call(graph)


def own_call(graph: InternalGraph) -> None:
    """Let the module take calls as this graph says."""
    owner: Any = graph.owner
    if owner is not None and graph.arguments is not None:
        graphs = {k: g for k, g in owner._graphs.items() if g is not graph}
        if arguments_key(graph.arguments) in graphs:
            raise GraphError(f"{graph.qualname} has another graph for calls of that form; flatten the module first")
        assign(graph, owner, "_graphs", {**graphs, arguments_key(graph.arguments): graph}, ("owner", graph))
        assign(graph, owner, "forward_signature", None, IN_ANOTHER)  # arguments are taken as they are given
