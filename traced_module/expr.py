"""Expressions: how the values of a graph are made."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from megengine.core.errors import GraphError

if TYPE_CHECKING:
    from megengine.tensor import Tensor
    from megengine.traced_module.graph import InternalGraph
    from megengine.traced_module.node import TensorNode


class Expr:
    """One computation. `inputs` and `outputs` are tuples; they change through the graph only."""

    __slots__ = ("_graph", "_id", "_inputs", "_outputs", "meta")
    kind = "Expr"

    def __init__(self, graph: InternalGraph, ident: int, meta: dict[str, Any]) -> None:
        self._graph = graph
        self._id = ident
        self._inputs: tuple[TensorNode, ...] = ()
        self._outputs: tuple[TensorNode, ...] = ()
        self.meta = meta

    @property
    def id(self) -> int:
        """Number of the expression, unique in its graph."""
        return self._id

    @property
    def graph(self) -> InternalGraph:
        """The graph the expression belongs to."""
        return self._graph

    top_graph = graph

    @property
    def inputs(self) -> tuple[TensorNode, ...]:
        """Values used, in order."""
        return self._inputs

    @property
    def outputs(self) -> tuple[TensorNode, ...]:
        """Values made, in order."""
        return self._outputs

    @property
    def output(self) -> TensorNode:
        """The only value made. Raises GraphError when there are several."""
        if len(self._outputs) != 1:
            raise GraphError(f"{self!r} makes {len(self._outputs)} values; expected one; use .outputs")
        return self._outputs[0]

    @property
    def name(self) -> str:
        """Name of the first value made."""
        return self._outputs[0].name if self._outputs else f"<{self.kind} {self._id}>"

    def _body(self) -> str:
        raise NotImplementedError

    def __repr__(self) -> str:
        names = ", ".join(n.name for n in self._outputs)
        return f"%{self._id}:\t{names} = {self._body()}"


class Input(Expr):
    """An input of the graph."""

    __slots__ = ()
    kind = "Input"

    def _body(self) -> str:
        return f"Input({self._outputs[0].spec})"


class Constant(Expr):
    """A value known when the graph is built: a weight, a table."""

    __slots__ = ("_value",)
    kind = "Constant"

    def __init__(self, graph: InternalGraph, ident: int, meta: dict[str, Any], value: Tensor) -> None:
        super().__init__(graph, ident, meta)
        self._value = value

    @property
    def value(self) -> Tensor:
        """The value."""
        return self._value

    def _body(self) -> str:
        return f"Constant({self._outputs[0].spec})"


class Apply(Expr):
    """One op applied to values."""

    __slots__ = ("_attrs", "_op")
    kind = "Apply"

    def __init__(
        self, graph: InternalGraph, ident: int, meta: dict[str, Any], op: str, attrs: Mapping[str, Any]
    ) -> None:
        super().__init__(graph, ident, meta)
        self._op = op
        self._attrs = MappingProxyType(dict(attrs))

    @property
    def op(self) -> str:
        """Name of the op."""
        return self._op

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Attributes of the op: a read-only mapping; `graph.set_attrs` changes it."""
        return self._attrs

    def _body(self) -> str:
        parts = [n.name for n in self._inputs] + [f"{k}={v}" for k, v in self._attrs.items()]
        return f"{self._op}({', '.join(parts)})"
