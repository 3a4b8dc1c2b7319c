"""Running a graph expression by expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megengine.core.errors import DTypeError, ShapeError
from megengine.core.pytree import flatten
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module.expr import Apply, Call, Constant, Expr, GetAttr
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import ModuleNode, TensorNode
from megengine.traced_module.queries import child_graph
from megengine.traced_module.tracing.calls import get_subattr, noted, run_call

OnValue = Callable[[TensorNode, Tensor], Tensor | None]
Run = Callable[[Apply, tuple[Tensor, ...]], Any]


def check_inputs(graph: InternalGraph, inputs: Sequence[Any]) -> list[Tensor]:
    """Inputs as tensors, their number checked; shapes and dtypes too at op level, where they are fixed."""
    wanted = [n for n in graph.inputs if isinstance(n, TensorNode)]
    if len(inputs) != len(wanted):
        raise ShapeError(f"graph {graph.name!r} takes {len(wanted)} inputs, got {len(inputs)}")
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    if graph._inputs_self():
        return tensors
    for node, x in zip(wanted, tensors, strict=True):
        if x.spec.shape != node.spec.shape:
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
    on_expr: Callable[[Expr], None] | None = None,
) -> list[Tensor]:
    """Run the graph; returns its outputs.

    `on_value(node, tensor)` sees each value (inputs and constants too; those of submodules' graphs as well) and may
    replace it; `on_expr(expr)` is told what runs next. Values are dropped after their last use. An error gets the
    failing expression as a note.
    """
    return _Interpreter(graph, on_value, run, on_expr).outputs(check_inputs(graph, inputs))


class _Interpreter:
    def __init__(
        self,
        graph: InternalGraph,
        on_value: OnValue | None,
        run: Run,
        on_expr: Callable[[Expr], None] | None,
    ) -> None:
        self.graph, self.on_value, self.run, self.on_expr = graph, on_value, run, on_expr
        self.values: dict[int, Any] = {}

    def outputs(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run everything."""
        graph, values = self.graph, self.values
        supply = iter(tensors)
        for node in graph.inputs:
            values[id(node)] = graph._owner if isinstance(node, ModuleNode) else self._seen(node, next(supply))
        left = {id(n): sum(n._users.values()) for e in graph._order for n in e.outputs}
        for n in graph.outputs:
            left[id(n)] += 1
        for expr in graph._order:
            if self.on_expr is not None:
                self.on_expr(expr)
            with noted(expr, graph):
                made = self._run_one(expr)
            for node, x in zip(expr.outputs, made, strict=False):
                values[id(node)] = x if isinstance(node, ModuleNode) else self._seen(node, x)
            for n in expr.inputs:
                left[id(n)] -= 1
                if left[id(n)] == 0:
                    values.pop(id(n), None)
        return [values[id(n)] for n in graph.outputs]

    def _run_one(self, expr: Expr) -> Sequence[Any]:
        if isinstance(expr, Constant):
            return (expr.value,)
        inputs = tuple(self.values[id(n)] for n in expr.inputs)
        if isinstance(expr, Apply):
            out = self.run(expr, inputs)
            return out if isinstance(out, tuple) else (out,)
        if isinstance(expr, GetAttr):
            return (get_subattr(inputs[0], expr.name),)
        if not isinstance(expr, Call):
            return ()
        watched = self.on_value is not None or self.on_expr is not None or self.run is not _default_run
        child = child_graph(expr) if watched else None
        if child is not None:
            return _Interpreter(child, self.on_value, self.run, self.on_expr).outputs(inputs[1:])
        return [leaf for leaf in flatten(run_call(expr, inputs))[0] if isinstance(leaf, Tensor)]

    def _seen(self, node: TensorNode, x: Tensor) -> Tensor:
        if self.on_value is None:
            return x
        replaced = self.on_value(node, x)
        return x if replaced is None else replaced
