"""Graphs of ops for another batch: lengths that were written into attributes follow it."""

from __future__ import annotations

from types import MappingProxyType

from megengine.core.errors import MegEngineError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.ir.expr import Apply, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, use_nodes

Shape = tuple[int, ...]


def at_batch(graph: InternalGraph, size: int) -> InternalGraph:
    """A copy of a graph of ops whose inputs have another first length.

    Lengths in attributes follow as the records of their ops say. Values that belong to every sample (a token in front
    of a sequence) are repeated where an op needs them for each, if the batch was one. Whether these are the right axes
    has to be tried with values.

    Raises:
        ShapeError: an op does not take the batch; the message names its node.
    """
    made = graph.clone()
    was = {id(n): n.spec.shape for expr in made.exprs() for n in expr.outputs}
    for expr in list(made.exprs()):
        if isinstance(expr, Input):
            specs = [TensorSpec((size, *n.spec.shape[1:]), n.spec.dtype, n.spec.device) for n in expr.outputs]
        elif isinstance(expr, Apply) and (
            expr.record.follow is not None or any(n.spec.shape != was[id(n)] for n in expr.inputs)
        ):
            specs = _followed(made, expr, [was[id(n)] for n in expr.inputs])
        else:
            continue
        for node, spec in zip(expr.outputs, specs, strict=True):
            assign(made, node, "_spec", spec)
    return made


def _followed(graph: InternalGraph, expr: Apply, old: list[Shape]) -> tuple[TensorSpec, ...]:
    """The results of an op for inputs of another batch, of shapes `old` before; lengths in attributes follow."""
    if expr.record.follow is not None:
        attrs = {**expr.attrs, **expr.record.follow(expr.attrs, old[0], expr.inputs[0].spec.shape)}
        assign(graph, expr, "_attrs", MappingProxyType(attrs))
    try:
        return _specs(expr)
    except MegEngineError as error:
        reason = error
    use_nodes(graph, expr, [_repeated(graph, expr, at, old) for at in range(len(old))])
    try:
        return _specs(expr)
    except MegEngineError:
        node = expr.outputs[0]
        raise ShapeError(f"open_batch: node {node.name!r} does not take another batch: {reason}") from reason


def _specs(expr: Apply) -> tuple[TensorSpec, ...]:
    specs = specs_of(expr, expr.inputs)
    assert specs is not None, expr
    return specs


def _repeated(graph: InternalGraph, expr: Apply, at: int, old: list[Shape]) -> TensorNode:
    """An input of an op; repeated for every sample along an axis in which another input follows the batch."""
    node = expr.inputs[at]
    if node.spec.shape != old[at]:
        return node
    for axis in range(-len(old[at]), 0):
        for other, before in zip(expr.inputs, old, strict=True):
            shape = other.spec.shape
            if len(before) < -axis or shape[axis] == before[axis] or before[axis] != old[at][axis]:
                continue
            times, left = divmod(shape[axis], before[axis])
            return node if left else _along(graph, expr, node, axis % node.spec.ndim, times)
    return node


def _along(graph: InternalGraph, expr: Apply, node: TensorNode, axis: int, times: int) -> TensorNode:
    """A node, repeated as a whole along an axis, in front of an op."""
    shape = node.spec.shape
    split, many = (*shape[:axis], 1, *shape[axis:]), (*shape[:axis], times, *shape[axis:])
    joint = (*shape[:axis], times * shape[axis], *shape[axis + 1 :])
    place = {"name": f"{expr.name}_samples", "before": expr, "meta": expr.meta}
    node = graph.apply("reshape", node, attrs={"shape": split}, **place)
    node = graph.apply("broadcast_to", node, attrs={"shape": many}, **place)
    return graph.apply("reshape", node, attrs={"shape": joint}, **place)
