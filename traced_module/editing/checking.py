"""What a graph refuses: nodes and expressions of others, values before they are made, other kinds, other specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megengine.core.errors import ArgumentError, GraphError, MegEngineError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.traced_module.ir.expr import Apply, Call, Expr
from megengine.traced_module.ir.node import ModuleNode, Node

if TYPE_CHECKING:
    from megengine.traced_module.ir.graph import InternalGraph


def where_it_stands(graph: InternalGraph, part: Any) -> str:
    """Where a node or expression that a graph does not have stands, and what to do."""
    if not isinstance(part, (Node, Expr)):
        return f"; it is a {type(part).__name__}, expected a part of the graph"
    if part._graph is graph:
        return "; it was taken out of it"
    if part._graph._top is graph._top:
        return f"; it stands in the graph of {part._graph.qualname}: edit that one, as its .top_graph gives it"
    return "; it stands in a graph of another model"


_USING = frozenset(("set_input", "set_inputs", "set_args_kwargs", "use", "arguments"))  # edits of what stands there


class Checks:
    """Checks of a graph and of its edits."""

    def _check_owned(self: InternalGraph, what: str, nodes: Iterable[Node]) -> None:  # type: ignore[misc]
        for n in nodes:
            if not isinstance(n, Node) or self._names.get(n._name) is not n:
                raise GraphError(f"{what}: node {n!r} does not belong to graph {self.name!r}{where_it_stands(self, n)}")

    def _check_expr(self: InternalGraph, what: str, expr: Any, kind: type[Expr] = Expr) -> None:  # type: ignore[misc]
        if isinstance(expr, Node):
            raise GraphError(f"{what}: {expr.name!r} is a node; expected the expression that makes it: node.expr")
        if (
            not isinstance(expr, Expr)
            or not expr.outputs
            or self._names.get(expr.outputs[0].name) is not expr.outputs[0]
        ):
            raise GraphError(
                f"{what}: expression {expr!r} does not belong to graph {self.name!r}{where_it_stands(self, expr)}"
            )
        if not isinstance(expr, kind):
            raise GraphError(f"{what}: {expr!r} is a {expr.kind}; expected a {kind.__name__}")

    def _check_kinds(self: InternalGraph, what: str, old: Iterable[Node], new: Iterable[Node]) -> None:  # type: ignore[misc]
        for a, b in zip(old, new, strict=True):
            if isinstance(a, ModuleNode) != isinstance(b, ModuleNode):
                raise GraphError(f"{what}: {a.name!r} and {b.name!r}: a module cannot stand for a tensor")

    def _check_before(self: InternalGraph, what: str, inputs: Iterable[Node], before: Expr | None) -> None:  # type: ignore[misc]
        if before is None:
            return
        for n in inputs:
            if n.expr._key >= before._key:
                place = (
                    f"{before!r}; use a value made before it"
                    if what in _USING
                    else "the place of insertion; insert later"
                )
                raise GraphError(f"{what}: input {n.name!r} is made after {place}")

    def _check_kept(self: InternalGraph, expr: Expr, *changed: Any) -> None:  # type: ignore[misc]
        """`_check_same`, which is left to the end of a transaction."""
        if not self._journal.deferring:
            self._check_same(expr, *changed)

    def _check_same(
        self: InternalGraph,  # type: ignore[misc]
        expr: Expr,
        inputs: Sequence[Node],
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        specs = self._specs_of(expr, inputs, attrs)
        if specs is None:
            return
        have = tuple(n.spec for n in expr.outputs)
        if specs != have:
            raise ShapeError(
                f"{expr!r}: the edit changes its results from {list(map(str, have))} to {list(map(str, specs))}"
            )

    def _specs_of(
        self, expr: Expr, inputs: Sequence[Node], attrs: Mapping[str, Any] | None = None
    ) -> tuple[TensorSpec, ...] | None:
        """Specs that `expr` would give for these inputs; None where they cannot be known without values."""
        if isinstance(expr, Apply):
            specs = inferred(get_op(expr.op), inputs, dict(expr.attrs if attrs is None else attrs))
            return (specs,) if isinstance(specs, TensorSpec) else tuple(specs)
        if isinstance(expr, Call):
            from megengine.traced_module.tracing.calls import specs_of_call

            return specs_of_call(expr, inputs)
        return None

    def lint(self: InternalGraph) -> None:  # type: ignore[misc]
        """Check ownership, order, uses both ways, names, shapes and dtypes. Raises GraphError at the first fault."""
        from megengine.traced_module.ir.lint import check

        check(self)


def inferred(op: Any, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Specs that an op gives. Raises what its rule raises; for a call of another form an error that names the op."""
    try:
        return infer(op, [n.spec for n in inputs], attrs)
    except MegEngineError:
        raise
    except TypeError as error:
        told = str(error).rpartition("infer() ")[2]
        given = ", ".join([*(n.name for n in inputs), *(f"{k}={v!r}" for k, v in attrs.items())])
        raise ArgumentError(f"{op.name}({given}): {told}") from None
