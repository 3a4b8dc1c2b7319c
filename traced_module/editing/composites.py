"""Modules of the user's as parts of a graph: traced there and then, for the calls that the graph makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import flatten, unflatten
from megengine.module import Module
from megengine.tensor import DeferredValueError
from megengine.traced_module.editing.attaching import attach, attribute_at, places_read
from megengine.traced_module.ir.expr import Call, GetAttr, is_call_module
from megengine.traced_module.ir.functions import arguments_key, flatten_arguments, forward_signature, normalized
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.primitives import number
from megengine.traced_module.ir.queries import all_exprs, graphs_of
from megengine.traced_module.nesting import nests
from megengine.traced_module.traced import TracedModule
from megengine.traced_module.tracing.assembly import Assembly
from megengine.traced_module.tracing.calls import is_leaf_module, stand_in, untouched
from megengine.traced_module.tracing.capture import ModuleTracer, tracing
from megengine.traced_module.tracing.source_lines import user_line

Arguments = tuple[Sequence[Any], dict[str, Any]]


def is_composite(value: Any) -> bool:
    """True for a module that is no layer and is not traced yet."""
    kind = type(value)  # not isinstance: to ask a module for its class runs Python
    return issubclass(kind, Module) and not issubclass(kind, GraphOwner) and not is_leaf_module(value)


def traced_for(module: Module, calls: Sequence[Arguments], what: str) -> TracedModule:
    """A module traced for calls of it, their arguments in normal form: a graph for each kind of arguments.

    Its layers and tensors are shared, and it keeps the class of the module.

    Raises:
        GraphError: the module asks for values, which nodes do not have.
    """
    try:
        traced = _traced(module, calls)
    except DeferredValueError as error:
        raise GraphError(
            f"{what}: {type(module).__name__} asks for values while it is traced, and nodes have none ({error}); trace "
            "it with example tensors first (trace_module)"
        ) from error
    traced._kept_class = f"{type(module).__module__}.{type(module).__qualname__}"
    return traced


@nests("trace_module")
def _traced(module: Module, calls: Sequence[Arguments]) -> TracedModule:
    tracer, name, source = ModuleTracer(), type(module).__name__, user_line()
    first = None
    try:
        with untouched(module), tracing(tracer):
            for args, kwargs in calls:
                graph, _ = tracer.trace(module, tuple(args), dict(kwargs), name, name, first, source)
                first = graph if first is None else first
    finally:
        tracer.restore()
    traced = Assembly(tracer).graph_module(module)
    traced.specializations = tuple(tracer.specializations)
    number(graphs_of(traced))
    return traced


def replacement(graph: InternalGraph, node: ModuleNode, module: Module) -> TracedModule:
    """A module traced for the calls of the one that a node reads, to be put in its place.

    Raises:
        GraphError: nothing calls that one.
    """
    calls: dict[Any, Arguments] = {}
    for call in calls_of(graph, node):
        _, *args = call.args
        try:
            args, kwargs = normalized(forward_signature(module), args, call.kwargs)
        except TypeError as error:
            raise GraphError(f"replace_module: {call!r} does not fit {type(module).__name__}: {error}") from None
        leaves, structure = flatten((args, kwargs))
        values = [stand_in(leaf) if isinstance(leaf, TensorNode) else leaf for leaf in leaves]
        _, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, TensorNode) else None)
        calls.setdefault(arguments_key(arguments), unflatten(structure, values))
    if not calls:
        raise GraphError(
            f"replace_module: nothing calls {node.qualname}, so a {type(module).__name__} cannot be traced for its "
            "calls; trace it first (trace_module)"
        )
    traced = traced_for(module, list(calls.values()), f"replace_module: {node.qualname}")
    counts = traced.graphs[0].journal.counts
    attach(graph, node.expr.name, traced)
    graph.journal.skip(counts)
    return traced


def calls_to_renew(graph: InternalGraph, node: ModuleNode) -> list[Call]:
    """Calls of what a node reads; where its module has several graphs, those of all of them."""
    if len(getattr(graph.owner, "graphs", ())) > 1:
        return calls_of(graph, node)
    return [user for user in node.users if isinstance(user, Call) and is_call_module(user)]


def check_not_read_inside(graph: InternalGraph, node: ModuleNode, new: Any) -> None:
    """Refuse to replace a module whose parts are read by their paths through it.

    The weight of a layer may be read so: another layer with such a weight may take its place.

    Raises:
        GraphError: names what is read.
    """
    is_layer = is_leaf_module(node.owner)
    holder, name, _ = attribute_at(node.expr.inputs[0], node.expr.name)
    for expr in all_exprs(graph.top):
        if not isinstance(expr, GetAttr) or "." not in expr.name:
            continue
        places = list(places_read(expr))
        at = next((i for i, (module, part) in enumerate(places[:-1]) if module is holder and part == name), None)
        if at is None:
            continue
        what = f"replace_module: {expr.name!r} is read by {expr.top_graph.qualname} through {node.qualname}"
        if not is_layer:
            raise GraphError(f"{what}; replace the layers inside it, or remove what uses them")
        found: Any = new
        for _, part in places[at + 1 :]:
            found = getattr(found, part, None)
        wanted, has = getattr(expr.output, "spec", Module), getattr(found, "spec", type(found).__name__)
        if has != wanted and not (wanted is Module and isinstance(found, Module)):
            has = "nothing" if found is None else has
            raise GraphError(f"{what}, and the new one has {has} there; replace its uses first")


def give_arguments(calls: Sequence[Call]) -> None:
    """Let calls of a module that is another one now have their arguments in its form, with its defaults."""
    for call in calls:
        module = call.inputs[0].owner
        if not issubclass(type(module), GraphOwner):
            continue
        _, *args = call.args
        try:
            args, kwargs = normalized(forward_signature(module), args, call.kwargs)
        except TypeError:
            continue  # inferring the call tells what is wrong
        if flatten((tuple(args), kwargs))[1] != flatten((tuple(call.args[1:]), call.kwargs))[1]:
            call.set_args_kwargs(call.inputs[0], *args, **kwargs)


def calls_of(graph: InternalGraph, node: ModuleNode) -> list[Call]:
    """Calls of what a node reads, in every graph that reads it from the same place."""
    wanted = attribute_at(node.expr.inputs[0], node.expr.name)[:2]
    module, name = node.owner, wanted[1]
    return [
        expr
        for expr in all_exprs(graph.top)
        if isinstance(expr, Call) and is_call_module(expr) and _reads(expr.inputs[0], module, (wanted[0], name))
    ]


def _reads(node: Any, module: Module, place: tuple[Any, str]) -> bool:
    expr = node.expr
    if not isinstance(expr, GetAttr) or expr.name.rpartition(".")[2] != place[1] or node.owner is not module:
        return False
    holder, name, _ = attribute_at(expr.inputs[0], expr.name)
    return holder is place[0] and name == place[1]
