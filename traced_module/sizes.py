"""Graphs of ops with open axes: which sizes inputs give, and the graph for one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from megengine.core.errors import MegEngineError, ShapeError
from megengine.core.sizes import at, is_open, name_of, names_of, renamed
from megengine.core.spec import TensorSpec
from megengine.core.text import one_line
from megengine.dispatch import get_op
from megengine.traced_module.editing.checking import specs_of
from megengine.traced_module.ir.expr import Apply, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign

Shape = tuple[int, ...]


def has_open_axes(graph: InternalGraph) -> bool:
    """Whether a graph of ops takes inputs of more than one shape."""
    return not graph.of_calls and any(is_open(node.spec.shape) for node in graph.inputs)


def sizes_of(graph: InternalGraph, shapes: Sequence[Shape]) -> dict[str, int]:
    """The sizes of the open axes for inputs of these shapes. Raises ShapeError for shapes that do not fit."""
    sizes: dict[str, tuple[int, str]] = {}
    for node, shape in zip(graph.inputs, shapes, strict=True):
        what = f"input {node.name!r} of graph {graph.name!r} has shape {tuple(shape)}"
        if len(shape) != len(node.spec.shape):
            raise ShapeError(f"{what}; expected {node.spec.shape}")
        for axis, (length, stated) in enumerate(zip(shape, node.spec.shape, strict=True)):
            if (name := name_of(stated)) is None:
                continue
            where = f"axis {axis} of {node.name!r}"
            known, place = sizes.setdefault(name, (int(length), where))
            if known != length:
                raise ShapeError(f"{what}: axis {axis} ({name}) is {length}; expected {known}, as {place} is")
    found = {name: length for name, (length, _) in sizes.items()}
    for node, shape in zip(graph.inputs, shapes, strict=True):
        for axis, (length, stated) in enumerate(zip(shape, node.spec.shape, strict=True)):
            if at(stated, found) != length:
                text = f"{stated} = {at(stated, found)}" if is_open(stated) else str(stated)
                raise ShapeError(
                    f"input {node.name!r} of graph {graph.name!r} has shape {tuple(shape)}: axis {axis} is {length}; "
                    f"expected {text}, as its shape is {node.spec.shape}"
                )
    return found


class HoldsSizes:
    """A value of an attribute, such as a graph that an op runs, in which sizes of the graph around it may be open."""

    __slots__ = ()

    def at_sizes(self, sizes: Mapping[str, int]) -> HoldsSizes:
        """The value where open sizes have these lengths."""
        raise NotImplementedError


def specialised(graph: InternalGraph, shapes: Sequence[Shape]) -> InternalGraph:
    """A copy of a graph of ops for inputs of these shapes, without open sizes.

    Raises:
        ShapeError: the graph does not take these shapes; the message names the input or the node, and the sizes.
    """
    return graph_at(graph, sizes_of(graph, shapes))


def graph_at(graph: InternalGraph, sizes: Mapping[str, int]) -> InternalGraph:
    """A copy of a graph of ops where the open sizes of these names have these lengths."""
    made = graph.clone()
    if not sizes:
        return made
    for expr, before in zip(made.exprs(), graph.exprs(), strict=True):
        if isinstance(expr, Apply):
            attrs = dict(expr.attrs)
            if is_open(attrs) or any(isinstance(value, HoldsSizes) for value in attrs.values()):
                held = {name: v.at_sizes(sizes) for name, v in attrs.items() if isinstance(v, HoldsSizes)}
                assign(made, expr, "_attrs", MappingProxyType({**at(attrs, sizes), **held}))
            try:
                specs = specs_of(expr, expr.inputs)
            except MegEngineError as error:
                raise unfit(before, sizes, error) from error
            assert specs is not None, expr
        elif isinstance(expr, Input):
            specs = [TensorSpec(at(n.spec.shape, sizes), n.spec.dtype, n.spec.device) for n in expr.outputs]
        else:
            continue
        for node, spec in zip(expr.outputs, specs, strict=True):
            assign(made, node, "_spec", spec)
    return made


def spec_at(spec: TensorSpec, sizes: Mapping[str, int]) -> TensorSpec:
    """A spec with its open sizes at these sizes."""
    return TensorSpec(at(spec.shape, sizes), spec.dtype, spec.device) if is_open(spec.shape) else spec


def counting(graph: InternalGraph) -> list[Apply]:
    """The ops of a graph that give lengths which depend on values."""
    return [e for e in graph.exprs() if isinstance(e, Apply) and get_op(e.op).counts]


def free_count(graph: InternalGraph, wanted: str) -> str:
    """A name for a length that depends on values: the wanted one, with a number where it is taken."""
    taken = {name for node in graph.inputs if isinstance(node, TensorNode) for name in names_of(node.spec.shape)}
    taken.update(str(expr.attrs["count"]) for expr in counting(graph))
    name, number = wanted, 1
    while name in taken:
        name, number = f"{wanted}_{number}", number + 1
    return name


def rename_lengths(graph: InternalGraph, names: Mapping[str, str]) -> None:
    """Give lengths that depend on values other names, free ones."""
    for expr in graph.exprs():
        if isinstance(expr, Apply) and (is_open(dict(expr.attrs)) or expr.attrs.get("count") in names):
            attrs = renamed(dict(expr.attrs), names)
            if "count" in attrs:
                attrs["count"] = names.get(attrs["count"], attrs["count"])
            assign(graph, expr, "_attrs", MappingProxyType(attrs))
        for node in expr.outputs:
            if isinstance(node, TensorNode) and is_open(node.spec.shape):
                shape = renamed(node.spec.shape, names)
                assign(graph, node, "_spec", TensorSpec(shape, node.spec.dtype, node.spec.device))


def note_counts(sizes: dict[str, int], specs: Sequence[TensorSpec], shapes: Sequence[Shape]) -> None:
    """Remember the lengths that values have in the place of named ones."""
    for spec, shape in zip(specs, shapes, strict=True):
        for stated, length in zip(spec.shape, shape, strict=True):
            if (name := name_of(stated)) is not None:
                sizes[name] = length


def unfit(expr: Expr, sizes: Mapping[str, int], error: Exception) -> ShapeError:
    """The error for sizes that an expression of a graph with open axes does not take."""
    given = ", ".join(f"{name} = {size}" for name, size in sizes.items())
    operands = ", ".join(f"{n.name} {n.spec}" for n in expr.inputs)
    return ShapeError(
        one_line(f"node {expr.outputs[0].name!r} ({expr.callee[1]}) does not take inputs with {given}: {error}; ")
        + one_line(f"its operands are {operands}")
    )
