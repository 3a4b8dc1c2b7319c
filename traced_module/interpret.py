"""Running a graph expression by expression."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core import hooks
from megengine.core.errors import DTypeError, GraphError, ShapeError
from megengine.core.pytree import flatten
from megengine.core.sizes import at
from megengine.core.text import counted, one_line
from megengine.dispatch import apply
from megengine.dispatch.refusal import kinds_named
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Call, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, TensorNode, get_subattr
from megengine.traced_module.ir.primitives import check_former_input
from megengine.traced_module.ir.queries import child_graph
from megengine.traced_module.sizes import has_open_axes, note_counts, sizes_of, unfit
from megengine.traced_module.tracing.calls import run_call

OnValue = Callable[[TensorNode, Tensor], Tensor | None]


def check_inputs(graph: InternalGraph, inputs: Sequence[Any]) -> list[Tensor]:
    """Inputs as tensors, their number checked; shapes and dtypes too at op level, where they are fixed."""
    wanted = [n for n in graph.inputs if isinstance(n, TensorNode)]
    if len(inputs) != len(wanted):
        raise ShapeError(f"graph {graph.name!r} takes {counted(len(wanted), 'input')}, got {len(inputs)}")
    tensors = [_as_input(node, x) for node, x in zip(wanted, inputs, strict=True)]
    if graph.of_calls:
        return tensors
    is_open = has_open_axes(graph)
    for node, x in zip(wanted, tensors, strict=True):
        if not is_open and x.spec.shape != node.spec.shape:
            what = f"input {node.name!r} of graph {graph.name!r} has shape {x.shape}; expected {node.shape}"
            remedy = "; open_batch gives a network for any batch" if x.shape[1:] == node.shape[1:] else ""
            raise ShapeError(what + remedy)
        if x.dtype != node.dtype:
            raise DTypeError(f"input {node.name!r} of graph {graph.name!r} is {x.dtype}; expected {node.dtype}")
    return tensors


_NARROWED = {np.dtype(np.int64): np.dtype(np.int32), np.dtype(np.float64): np.dtype(np.float32)}


def as_tensors(arrays: Iterable[np.ndarray], graph: InternalGraph) -> list[Tensor]:
    """Arrays, as values are stored, as tensors of the inputs' own dtypes."""
    return [Tensor._wrap(a, node.spec.dtype, node.spec.device) for a, node in zip(arrays, graph.inputs, strict=True)]


def _as_input(node: TensorNode, x: Any) -> Tensor:
    """A tensor for an input; arrays of wide numbers make narrow tensors, and a graph read from a file may want wide."""
    where = None if node.spec is None else node.spec.device
    tensor = x if isinstance(x, Tensor) else Tensor(x, device=where)
    if node.spec is None or tensor.dtype == node.dtype or tensor.dtype != _NARROWED.get(node.dtype):
        return tensor
    exact = tensor.numpy() if isinstance(x, Tensor) else np.asarray(x)
    return Tensor._wrap(exact.astype(node.dtype), device=where)


@kinds_named
def interpret(
    graph: InternalGraph,
    inputs: Sequence[Any],
    *,
    on_value: OnValue | None = None,
    on_expr: Callable[[Expr], None] | None = None,
) -> list[Tensor]:
    """Run the graph; returns its outputs.

    `on_value(node, tensor)` sees each value (inputs and constants too; those of submodules' graphs as well) and may
    replace it; `on_expr(expr)` is called before each expression. Values are dropped after their last use.
    An error gets the failing expression as a note.
    """
    return _Interpreter(on_value, on_expr).outputs(graph, check_inputs(graph, inputs))


def run_op(expr: Apply, inputs: Sequence[Tensor], sizes: dict[str, int]) -> tuple[Tensor, ...]:
    """The results of one op of a graph; `sizes` are those of its open axes, and lengths that follow are added."""
    attrs = at(dict(expr.attrs), sizes) if sizes else expr.attrs
    out = apply(expr.op, *inputs, **attrs)
    made = out if isinstance(out, tuple) else (out,)
    if "count" in expr.attrs:
        note_counts(sizes, [n.spec for n in expr.outputs], [t.shape for t in made])
    listener = hooks.active.get()
    return made if listener is None else listener.applied(expr, inputs, attrs, made)


def run_one(expr: Expr, inputs: Sequence[Any], sizes: dict[str, int]) -> Sequence[Any]:
    """What one expression gives for values in place of its inputs; graphs that it calls are run, too."""
    if isinstance(expr, Constant):
        return (expr.value,)
    if isinstance(expr, Apply):
        return run_op(expr, inputs, sizes)
    if isinstance(expr, GetAttr):
        return (get_subattr(inputs[0], expr.name),)
    if not isinstance(expr, Call):
        check_former_input(expr)
        return ()
    return [leaf for leaf in flatten(run_call(expr, inputs))[0] if isinstance(leaf, Tensor)]


def run_alone(expr: Expr, inputs: Sequence[Any]) -> Sequence[Any]:
    """See `Expr.interpret`; lengths of open axes are those that the graph was traced with."""
    if isinstance(expr, Input):
        raise GraphError(f"interpret: {expr!r} is given, not computed; graph.interpret takes values for inputs")
    if isinstance(expr, Apply):
        out = apply(expr.op, *inputs, **expr.attrs_at_example)
        return out if isinstance(out, tuple) else (out,)
    return run_one(expr, inputs, {})


@dataclass(slots=True)
class _Running:
    """A graph that is run: what is left to do and the values that are still needed."""

    graph: InternalGraph
    todo: Iterator[Expr]
    values: dict[int, Any]
    left: dict[int, int]  # uses of each value that are still to come
    sizes: dict[str, int]  # of open axes
    at: Expr | None = None

    def keep(self, expr: Expr, results: Iterable[Any]) -> None:
        """An expression has given its values; those that nothing needs any more are dropped."""
        values, left = self.values, self.left
        for node, x in zip(expr.outputs, results, strict=False):
            values[id(node)] = x
        for n in expr.inputs:
            left[id(n)] -= 1
            if left[id(n)] == 0:
                values.pop(id(n), None)


class _Interpreter:
    def __init__(self, on_value: OnValue | None, on_expr: Callable[[Expr], None] | None) -> None:
        self.on_value, self.on_expr = on_value, on_expr
        self.watched = on_value is not None or on_expr is not None

    def outputs(self, graph: InternalGraph, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run everything. Graphs of submodules are entered without recursion: they may nest deeper than calls can."""
        entered = [self._enter(graph, tensors)]
        try:
            while True:
                running = entered[-1]
                inside = self._until_entry(running)
                if inside is not None:
                    entered.append(inside)
                    continue
                results = [running.values[id(n)] for n in running.graph.outputs]
                entered.pop()
                if not entered:
                    return results
                around = entered[-1]
                assert around.at is not None
                around.keep(around.at, self._all_seen(around.at, results))
        except Exception as exc:
            failed, sizes = entered[-1].at, entered[-1].sizes
            if sizes and failed is not None and isinstance(exc, ShapeError):
                raise unfit(failed, sizes, exc) from exc
            for running in reversed(entered):
                if running.at is not None:
                    _note(exc, running.at, running.graph)
            raise

    def _enter(self, graph: InternalGraph, tensors: Sequence[Tensor]) -> _Running:
        values: dict[int, Any] = {}
        supply = iter(tensors)
        for node in graph.inputs:
            values[id(node)] = graph.owner if isinstance(node, ModuleNode) else self._seen(node, next(supply))
        left = {id(n): sum(n._users.values()) for e in graph.exprs(recursive=False) for n in e.outputs}
        for n in graph.outputs:
            left[id(n)] += 1
        sizes = sizes_of(graph, [x.spec.shape for x in tensors]) if has_open_axes(graph) else {}
        return _Running(graph, iter(graph.exprs(recursive=False)), values, left, sizes)

    def _until_entry(self, running: _Running) -> _Running | None:
        """Run a graph up to a call that enters another one, which is given; None at its end."""
        listener = hooks.active.get()
        for expr in running.todo:
            running.at = expr
            if listener is not None:
                listener.replays(expr)
            if self.on_expr is not None:
                self.on_expr(expr)
            inputs = tuple([running.values[id(n)] for n in expr.inputs])
            child = self._entered(expr, inputs)
            if child is not None:
                return self._enter(child, inputs[1:])
            running.keep(expr, self._all_seen(expr, run_one(expr, inputs, running.sizes)))
        if listener is not None:
            listener.replays(None)
        return None

    def _entered(self, expr: Expr, inputs: tuple[Any, ...]) -> InternalGraph | None:
        """The graph that a call enters; None for layers, and for modules that are called for more than their graph."""
        child = child_graph(expr)
        if child is None or self.watched:
            return child
        return child if hooks.active.get() is None and inputs[0]._only_runs_its_graph() else None

    def _all_seen(self, expr: Expr, results: Sequence[Any]) -> Sequence[Any]:
        if self.on_value is None:
            return results
        both = zip(expr.outputs, results, strict=False)
        return [x if isinstance(node, ModuleNode) else self._seen(node, x) for node, x in both]

    def _seen(self, node: TensorNode, x: Tensor) -> Tensor:
        if self.on_value is None:
            return x
        replaced = self.on_value(node, x)
        return x if replaced is None else replaced


def _note(exc: Exception, expr: Expr, graph: InternalGraph) -> None:
    """Add to an error which expression of which graph was running, and the line of the user's code that made it."""
    source = expr.meta.get("source")
    exc.add_note(one_line(f"while running {expr!r} of {graph.qualname}" + (f" ({source})" if source else "")))
