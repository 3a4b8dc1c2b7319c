"""Nodes: the values of a graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megengine.core.spec import TensorSpec

if TYPE_CHECKING:
    from megengine.traced_module.expr import Expr
    from megengine.traced_module.graph import InternalGraph


class Node:
    """A value: made by one expression, used by others. Its structure is changed through its graph only.

    `name` is unique in the graph; `qualname` is the path by which users know the value; `meta` carries provenance:
    "module" (module path), "source" (file:line), "passes" (names of passes that changed it).
    """

    __slots__ = ("_expr", "_graph", "_id", "_name", "_qualname", "_users", "meta")

    def __init__(self, graph: InternalGraph, ident: int, name: str, qualname: str, meta: dict[str, Any]) -> None:
        self._graph = graph
        self._id = ident
        self._name = name
        self._qualname = qualname
        self._expr: Expr | None = None
        self._users: list[Expr] = []
        self.meta = meta

    @property
    def id(self) -> int:
        """Number of the node, unique in its graph."""
        return self._id

    @property
    def name(self) -> str:
        """Unique name in the graph."""
        return self._name

    @name.setter
    def name(self, new: str) -> None:
        self._graph.rename(self, new)

    @property
    def qualname(self) -> str:
        """Path of the value: module path and how it was made."""
        return self._qualname

    @property
    def graph(self) -> InternalGraph:
        """The graph the node belongs to."""
        return self._graph

    top_graph = graph

    @property
    def expr(self) -> Expr:
        """The expression that makes the value."""
        assert self._expr is not None
        return self._expr

    @property
    def users(self) -> tuple[Expr, ...]:
        """Expressions that use the value, each once, in the order in which they began to."""
        return tuple(dict.fromkeys(self._users))

    def __repr__(self) -> str:
        return self._name


class TensorNode(Node):
    """A tensor value, known by its spec."""

    __slots__ = ("_spec",)

    def __init__(self, *args: Any, spec: TensorSpec) -> None:
        super().__init__(*args)
        self._spec = spec

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and device."""
        return self._spec

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return self._spec.shape

    @property
    def dtype(self) -> Any:
        """Element type."""
        return self._spec.dtype

    @property
    def device(self) -> str:
        """Name of the device."""
        return self._spec.device
