"""Replaces calls that MegEngine 1.13 cannot run by calls of equal results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine import functional as F
from megengine import module as M
from megengine.core.pytree import flatten
from megengine.traced_module.ir.expr import Call, Expr, GetAttr, is_call_function, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.ir.primitives import assign
from megengine.traced_module.ir.queries import graphs_of
from megengine.traced_module.passes.layer_uses import has_hooks
from megengine.traced_module.traced import TracedModule

# layers that MegEngine lacks -> functions that it has
FUNCTIONS: dict[type[M.Module], Callable[[Any], Any]] = {
    M.ReLU6: F.relu6,
    M.Tanh: F.tanh,
    M.HSwish: F.hswish,
    M.HSigmoid: F.hsigmoid,
}
# arguments that must be numbers, or a tuple of them; a shape is one tensor of several numbers
_LENGTHS = ("kernel_size", "stride", "padding")


def for_megengine(traced: TracedModule) -> TracedModule:
    """The module itself if MegEngine can run it, else a copy that it can run.

    Calls of layers that it lacks become calls of functions; shapes as sizes of pooling windows become tuples.
    """
    if not any(_change_of(e) for g in graphs_of(traced) for e in g.exprs(recursive=False)):
        return traced
    copy = traced.clone()
    pairs = list(zip(graphs_of(traced), graphs_of(copy), strict=True))
    names = {id(n): (other, n.name) for graph, other in pairs for n in graph.nodes(recursive=False)}
    for graph in graphs_of(copy):
        for expr in graph.exprs(recursive=False):
            change = _change_of(expr)
            if change is not None:
                change(graph, expr)
    for graph, other in pairs:  # of a point that went the former node stays, which the writer refuses
        for points in ("watch_points", "end_points"):
            old = getattr(graph.owner, points)
            new = [at.names.get(name) for at, name in (names.get(id(n), (other, "")) for n in old)]
            setattr(
                other.owner, points, [n or was for n, was in zip(new, old, strict=True)]
            )  # the writer refuses these
    _drop_layers(copy)
    return copy


def results_without_tensor(traced: TracedModule) -> list[str]:
    """Calls whose results hold None or numbers beside tensors: MegEngine refuses to run them."""
    calls = [e for g in graphs_of(traced) for e in g.exprs(recursive=False) if isinstance(e, Call)]
    return [e.name for e in calls if not all(isinstance(leaf, TensorNode) for leaf in flatten(e.return_val)[0])]


def _change_of(expr: Expr) -> Callable[[InternalGraph, Any], None] | None:
    if is_call_module(expr):
        node = expr.inputs[0]
        lowered = isinstance(node.expr, GetAttr) and type(node.owner) in FUNCTIONS and not has_hooks(node.owner)
        return _call_function if lowered else None
    if is_call_function(expr, (F.max_pool2d, F.avg_pool2d)) and _shapes_among(expr):
        return _split_shapes
    return None


def _call_function(graph: InternalGraph, expr: Call) -> None:
    node, x = expr.inputs
    with graph.insert_exprs(expr):
        result = FUNCTIONS[type(node.owner)](x)
    name = expr.outputs[0].name
    graph.replace_node({expr.outputs[0]: result})
    graph.erase(expr)
    graph.rename(result, name)
    assign(graph, result.expr, "meta", dict(expr.meta))
    if not node.users:
        graph.erase(node.expr)


def _shapes_among(expr: Any) -> list[str]:
    return [k for k, v in expr.named_args.items() if k in _LENGTHS and isinstance(v, TensorNode) and v.spec.ndim == 1]


def _split_shapes(graph: InternalGraph, expr: Call) -> None:
    for name in _shapes_among(expr):
        shape = expr.named_args[name]
        with graph.insert_exprs(shape.expr):
            lengths = tuple(shape[i] for i in range(shape.spec.shape[0]))
        expr.set_arg(name, lengths)


def _drop_layers(module: TracedModule) -> None:
    """Remove the replaced layers that nothing reads any more."""
    nodes = [n for g in graphs_of(module) for n in g.nodes(recursive=False)]
    read = {id(n.owner) for n in nodes if isinstance(n, ModuleNode) and n.users}
    todo, seen = [module], set()
    while todo:
        at = todo.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        for name, value in list(object.__getattribute__(at, "__dict__").items()):
            if isinstance(value, TracedModule):
                todo.append(value)
            elif type(value) in FUNCTIONS and id(value) not in read:
                object.__delattr__(at, name)
