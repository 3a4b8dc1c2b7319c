"""Checks of edits: nodes and expressions of other graphs, values before they are made, other kinds, other specs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import ArgumentError, GraphError, MegEngineError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import infer
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Call, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import is_name, nearest_node
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.tracing.specs import specs_of_call

_USING = frozenset(("set_input", "set_inputs", "set_args_kwargs", "use", "arguments"))  # edits of what stands there


def where_it_stands(graph: InternalGraph, part: Any) -> str:
    """Where a node or expression that a graph does not have stands, and what to do."""
    if not isinstance(part, (Node, Expr)):
        is_value = isinstance(part, (int, float, np.ndarray))
        remedy = f"; graph.constant({'value' if is_value else 'tensor'}) makes one"
        remedy = remedy if is_value or isinstance(part, Tensor) else ""
        if isinstance(part, str):
            remedy = f"; graph.node(path) gives one{'' if is_name(graph, part) else nearest_node(graph, part)}"
        return f"; it is a {type(part).__name__}, expected a part of the graph{remedy}"
    if part.top_graph is graph:
        return "; it was taken out of it"
    if part.top_graph.top is graph.top:
        return f"; it stands in the graph of {part.top_graph.qualname}: edit that one, as its .top_graph gives it"
    return "; it stands in a graph of another model"


def check_owned(graph: InternalGraph, what: str, nodes: Iterable[Node]) -> None:
    for n in nodes:
        if isinstance(n, Expr):
            raise GraphError(f"{what}: {n!r} is an expression; expected a node: expr.output, or one of expr.outputs")
        if not isinstance(n, Node) or graph.names.get(n.name) is not n:
            place = where_it_stands(graph, n)
            raise GraphError(f"{what}: node {_named(n)} does not belong to graph {graph.name!r}{place}")


def _named(part: Any) -> str:
    """A part as messages write it; of a tensor not its values."""
    return f"Tensor of {part.spec}" if isinstance(part, Tensor) else repr(part)


def check_expr(graph: InternalGraph, what: str, expr: Any, kind: type[Expr] = Expr) -> None:
    if isinstance(expr, Node):
        raise GraphError(f"{what}: {expr.name!r} is a node; expected the expression that makes it: node.expr")
    if not isinstance(expr, Expr) or expr.top_graph is not graph or not expr.in_graph:
        raise GraphError(
            f"{what}: expression {_named(expr)} does not belong to graph {graph.name!r}{where_it_stands(graph, expr)}"
        )
    if not isinstance(expr, kind):
        raise GraphError(f"{what}: {expr!r} is a {expr.kind}; expected a {kind.__name__}")


def check_kinds(what: str, old: Iterable[Node], new: Iterable[Node]) -> None:
    for a, b in zip(old, new, strict=True):
        if isinstance(a, ModuleNode) != isinstance(b, ModuleNode):
            raise GraphError(f"{what}: {a.name!r} and {b.name!r}: a module cannot stand for a tensor")


def check_before(what: str, inputs: Iterable[Node], before: Expr | None) -> None:
    if before is None:
        return
    for n in inputs:
        if n.expr.position >= before.position:
            place = (
                f"{before!r}; use a value made before it" if what in _USING else "the place of insertion; insert later"
            )
            raise GraphError(f"{what}: input {n.name!r} is made after {place}")


def check_kept(expr: Expr, *changed: Any) -> None:
    """`check_same`, which is left to the end of a transaction."""
    if not expr.top_graph.journal.deferring:
        check_same(expr, *changed)


def check_same(expr: Expr, inputs: Sequence[Node], attrs: Mapping[str, Any] | None = None) -> None:
    specs = specs_of(expr, inputs, attrs)
    if specs is None:
        return
    have = tuple(n.spec for n in expr.outputs)
    if specs != have:
        raise ShapeError(
            f"{expr!r}: the edit changes its results from {list(map(str, have))} to {list(map(str, specs))}"
        )


def specs_of(
    expr: Expr, inputs: Sequence[Node], attrs: Mapping[str, Any] | None = None
) -> tuple[TensorSpec, ...] | None:
    """Specs that `expr` would give for these inputs; None where they cannot be known without values."""
    if isinstance(expr, Apply):
        specs = inferred(expr.record, inputs, dict(expr.attrs if attrs is None else attrs))
        return (specs,) if isinstance(specs, TensorSpec) else tuple(specs)
    if isinstance(expr, Call):
        return specs_of_call(expr, inputs)
    return None


def inferred(op: Any, inputs: Sequence[Any], attrs: dict[str, Any]) -> Any:
    """Specs that an op gives. Raises what its rule raises; for a call of another form an error that names the op."""
    try:
        return infer(op, [n.spec for n in inputs], attrs)
    except MegEngineError:
        raise
    except TypeError as error:
        reason = str(error).rpartition("infer() ")[2]
        arguments = ", ".join([*(n.name for n in inputs), *(f"{k}={v!r}" for k, v in attrs.items())])
        raise ArgumentError(f"{op.name}({arguments}): {reason}") from None
