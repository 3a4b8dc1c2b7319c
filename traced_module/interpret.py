"""Running a graph expression by expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megengine.core.errors import DTypeError, ShapeError
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module.expr import Apply, Constant, Expr
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import TensorNode

OnValue = Callable[[TensorNode, Tensor], Tensor | None]
Run = Callable[[Apply, tuple[Tensor, ...]], Any]


def check_inputs(graph: InternalGraph, inputs: Sequence[Any]) -> list[Tensor]:
    """Inputs as tensors, with number, shapes and dtypes checked against the graph."""
    if len(inputs) != len(graph.inputs):
        raise ShapeError(f"graph {graph.name!r} takes {len(graph.inputs)} inputs, got {len(inputs)}")
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    for node, x in zip(graph.inputs, tensors, strict=True):
        if x.shape != node.shape:
            raise ShapeError(f"input {node.name!r} of graph {graph.name!r} has shape {x.shape}; expected {node.shape}")
        if x.dtype != node.dtype:
            raise DTypeError(f"input {node.name!r} of graph {graph.name!r} is {x.dtype}; expected {node.dtype}")
    return tensors


def _default_run(expr: Apply, tensors: tuple[Tensor, ...]) -> Any:
    return apply(expr.op, *tensors, **expr.attrs)


def interpret(
    graph: InternalGraph,
    inputs: Sequence[Any],
    *,
    on_value: OnValue | None = None,
    run: Run = _default_run,
) -> list[Tensor]:
    """Run the graph; returns its outputs.

    `on_value(node, tensor)` sees each value (inputs and constants too) and may replace it. Values are dropped after
    their last use. An error gets the failing expression as a note.
    """
    values: dict[int, Tensor] = {}
    for node, x in zip(graph.inputs, check_inputs(graph, inputs), strict=True):
        values[id(node)] = _seen(on_value, node, x)
    left = {id(n): len(n._users) for n in graph.nodes()}
    for n in graph.outputs:
        left[id(n)] += 1
    for expr in graph.exprs():
        for node, x in zip(expr.outputs, _run_one(expr, values, run), strict=False):
            values[id(node)] = _seen(on_value, node, x)
        for n in expr.inputs:
            left[id(n)] -= 1
            if left[id(n)] == 0:
                values.pop(id(n), None)
    return [values[id(n)] for n in graph.outputs]


def _run_one(expr: Expr, values: dict[int, Tensor], run: Run) -> tuple[Tensor, ...]:
    if isinstance(expr, Constant):
        return (expr.value,)
    if not isinstance(expr, Apply):
        return ()
    try:
        out = run(expr, tuple(values[id(n)] for n in expr.inputs))
    except Exception as exc:
        exc.add_note(f"while running {expr!r}")
        raise
    return out if isinstance(out, tuple) else (out,)


def _seen(on_value: OnValue | None, node: TensorNode, x: Tensor) -> Tensor:
    if on_value is None:
        return x
    replaced = on_value(node, x)
    return x if replaced is None else replaced
