"""Ops as source: the operator or public function that applies just this op, else `apply` with its name."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import GraphError, MegEngineError
from megengine.tensor import Tensor
from megengine.traced_module.bodies import bodies_of
from megengine.traced_module.ir.expr import Apply, Input
from megengine.traced_module.operators import ARITHMETIC, BINARY, op_of
from megengine.traced_module.source.layers import same_value
from megengine.traced_module.source.text import Code, Group, Labelled, called, literal
from megengine.traced_module.tracing.record import record

OPERATORS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    op_of(BINARY[stem]): (BINARY[stem], getattr(operator, stem)) for stem in ARITHMETIC
}


def op_code(expr: Apply, inputs: list[str], code: Callable[[Any], Code]) -> Code:
    """The call that applies an op: an operator, a function of `F`, or `apply("op", ...)`; `code` writes attributes."""
    attrs = dict(expr.attrs)
    if held := [name for name, _ in bodies_of(expr)]:
        raise GraphError(
            f"the op {expr.op!r} runs graphs ({', '.join(held)}), which have no form in Python source; "
            "write .mgt or .onnx"
        )
    if expr.op in OPERATORS and len(inputs) == 2 and not attrs:
        symbol, function = OPERATORS[expr.op]
        if _does_the_same(expr, function):
            return f"{inputs[0]} {symbol} {inputs[1]}"
    public = getattr(F, expr.op, None)
    if public is not None and hasattr(public, "__public__"):
        for listed, options in _ways(attrs):
            if _does_the_same(expr, _call(public, listed, options)):
                arguments: list[Code] = [Group("", "[", tuple(inputs), "]")] if listed else list(inputs)
                named = [Labelled(f"{k}=", code(v)) for k, v in _needed(expr, public, listed, options).items()]
                return called(f"F.{expr.op}", [*arguments, *named])
    named = [Labelled(f"{k}=", _attribute(v, code)) for k, v in attrs.items()]
    return called("apply", [literal(expr.op), *inputs, *named])


def _attribute(value: Any, code: Callable[[Any], Code]) -> Code:
    """An attribute of an op: functions take a dtype by its name, ops the dtype."""
    return called("np.dtype", [code(value)]) if isinstance(value, np.dtype) else code(value)


def _call(function: Callable[..., Any], listed: bool, options: dict[str, Any]) -> Callable[..., Any]:
    return lambda *xs: function(list(xs), **options) if listed else function(*xs, **options)


def _ways(attrs: dict[str, Any]) -> Iterator[tuple[bool, dict[str, Any]]]:
    """(tensors as a list, options) of the calls of a public function that may apply an op."""
    simple = {k: _simplified(v) for k, v in attrs.items()}
    yield False, simple
    yield False, attrs
    yield True, attrs


def _simplified(value: Any) -> Any:
    if isinstance(value, tuple) and value and type(value[0]) in (int, tuple):
        items = tuple(map(_simplified, value))
        return items[0] if all(same_value(v, items[0]) for v in items) else items
    return value


def _needed(expr: Apply, function: Callable[..., Any], listed: bool, options: dict[str, Any]) -> dict[str, Any]:
    """Options without those that are defaults of the function."""
    kept = dict(options)
    for name in options:
        fewer = {k: v for k, v in kept.items() if k != name}
        if _does_the_same(expr, _call(function, listed, fewer)):
            kept = fewer
    return kept


def _does_the_same(expr: Apply, function: Callable[..., Tensor]) -> bool:
    """True if calling a function on tensors like the op's inputs applies this op to them, and nothing else."""
    try:
        graph = record(function, [n.spec for n in expr.inputs])
    except (MegEngineError, TypeError, ValueError, AttributeError):
        return False
    ops = [e for e in graph.exprs() if not isinstance(e, Input)]
    return (
        len(ops) == 1
        and isinstance(ops[0], Apply)
        and ops[0].op == expr.op
        and dict(ops[0].attrs) == dict(expr.attrs)
        and list(map(id, ops[0].inputs)) == list(map(id, graph.inputs))
        and [n.spec for n in ops[0].outputs] == [n.spec for n in expr.outputs]
        and list(map(id, graph.outputs)) == list(map(id, ops[0].outputs))
    )
