"""Graphs that nodes run: their inputs, and what they get for the open sizes of the graph around them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from megengine.convert.onnx.context import Group
from megengine.convert.onnx.open_values import is_open_array
from megengine.core.errors import FileFormatError
from megengine.core.sizes import name_of, names_of
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.traced_module import InternalGraph
from megengine.traced_module.ir.node import TensorNode

if TYPE_CHECKING:
    import onnx


def sizes_in(value: Any) -> set[str]:
    """The names of the open sizes that a value follows from: those of its shape, or of the numbers that it holds."""
    if isinstance(value, Group):
        return {name for one in (*value.values, value.rows) for name in sizes_in(one)}
    if isinstance(value, (TensorNode, TensorSpec)):
        return names_of(value.shape)
    return names_of(value.reshape(-1).tolist()) if is_open_array(value) else set()


def shown_by(graph: InternalGraph) -> set[str]:
    """The open sizes that are axes of a graph's inputs, which a call gives."""
    return {name for node in graph.inputs for name in _axes(node)}


def showing(name: str, values: Iterable[tuple[str, Any]]) -> tuple[str, TensorNode] | None:
    """The first of some values, with its name, that has an open size as an axis."""
    return next(((n, v) for n, v in values if isinstance(v, TensorNode) and name in _axes(v)), None)


def added_by_round(name: str, value: Any) -> Any:
    """What a round adds to a sequence; other values as they are."""
    if not isinstance(value, Group) or not value.grows:
        return value
    if len(value.values) != 1:
        raise FileFormatError(
            f"a round adds {counted(len(value.values), 'value')} to the sequence {name!r}, and the number of rounds "
            "depends on the network's input; expected one"
        )
    return value.values[0]


def inputs_of(graph: onnx.GraphProto, count: int) -> Sequence[onnx.ValueInfoProto]:
    """The inputs of a graph that a node runs, which gives it so many values; ONNX Runtime lists stored ones behind."""
    stored = {item.name for item in graph.initializer}
    inputs = [item for place, item in enumerate(graph.input) if place < count or item.name not in stored]
    if len(inputs) != count:
        took = counted(len(inputs), "input")
        raise FileFormatError(f"the graph {graph.name!r} has {took} for {counted(count, 'value')}; the file is damaged")
    return inputs


def _axes(node: Any) -> set[str]:
    return {name for length in node.spec.shape if (name := name_of(length)) is not None}
