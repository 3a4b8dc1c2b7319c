"""Whether the open first axis of a network is the batch: each row has results of its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import MegEngineError
from megengine.core.sizes import name_of, names_of
from megengine.traced_module.interpret import as_tensors, interpret
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.moving import moved
from megengine.traced_module.sizes import counting

Batch = tuple[np.ndarray, ...]

_NEAR = 1e-4  # of the largest result: sums of floats may have another order in a larger batch
_MORE = (8, 64, 1 << 10)  # integers below that are tried
_FAILURES = (MegEngineError, ArithmeticError, IndexError, ValueError)  # of ops that random numbers do not suit


def takes_rows(graph: InternalGraph) -> bool:
    """True if the first axis of every input and result is one open axis, and each of its rows has results of its own.

    Whether a row depends on others is tried with two rows of random numbers, which give together what each gives alone.
    Integers are 0 and 1, and further ones where the network takes such: a row of few words may hold nothing that
    another one lacks.
    """
    return not graph.of_calls and not any(_result_axes(graph) or (1,)) and rows_apart(graph)


def rows_apart(graph: InternalGraph) -> bool:
    """As `takes_rows`, of results that have the batch in any one axis (sequences with time in front)."""
    axes = [] if graph.of_calls else _result_axes(graph)
    if not axes or counting(graph):
        return False
    has_integers = any(storage_of(n.spec.dtype).kind in "iu" for n in graph.inputs)
    return bool(_rows_alone(graph, axes, 2)) and all(
        _rows_alone(graph, axes, most) is not False for most in _MORE if has_integers
    )


def _result_axes(graph: InternalGraph) -> list[int]:
    """In which axis each result has the batch, the open first axis of all inputs; empty if one has it in none, in
    several, or as a part of a length.
    """
    nodes = [*graph.inputs, *graph.outputs]
    if not all(isinstance(n, TensorNode) and n.shape for n in nodes):
        return []
    rows = {name_of(n.spec.shape[0]) for n in graph.inputs}
    if len(rows) != 1 or None in rows or any(rows & names_of(n.spec.shape[1:]) for n in graph.inputs):
        return []
    named = [[rows & names_of((length,)) for length in n.spec.shape] for n in graph.outputs]
    if any(sum(map(bool, lengths)) != 1 for lengths in named):
        return []
    axes = [[bool(names) for names in lengths].index(True) for lengths in named]
    alone = (name_of(n.spec.shape[axis]) for n, axis in zip(graph.outputs, axes, strict=True))
    return axes if rows.issuperset(alone) else []


def _rows_alone(graph: InternalGraph, axes: list[int], integers: int) -> bool | None:
    """Whether two rows give together what each gives alone; None if the network does not take integers below that.

    Args:
        axes: in which each result has the rows.
    """
    both = _drawn(graph, 2, integers)
    try:
        together = _results(graph, both)
        alone = [_results(graph, row) for row in rows_of(both)]
    except _FAILURES:
        return None
    return all(
        _near(y.take([i], axis), alone[i][at])
        for at, (y, axis) in enumerate(zip(together, axes, strict=True))
        for i in range(2)
    )


def same_at(fixed: InternalGraph, opened: InternalGraph) -> bool:
    """Whether a graph with an open batch gives what that for one batch gives, on random numbers."""
    arrays = _drawn(fixed, fixed.inputs[0].spec.shape[0])
    try:
        return all(_near(a, b) for a, b in zip(_results(opened, arrays), _results(fixed, arrays), strict=True))
    except _FAILURES:
        return False


def rows_of(arrays: Batch) -> Iterator[Batch]:
    """Each row of a batch, as a batch of one."""
    for i in range(len(arrays[0])):
        yield tuple(array[i : i + 1] for array in arrays)


def _drawn(graph: InternalGraph, size: int, integers: int = 2) -> Batch:
    generator, drawn = np.random.default_rng(0), []
    for node in graph.inputs:
        shape, dtype = (size, *node.spec.example.shape[1:]), storage_of(node.spec.dtype)
        numbers = (
            generator.integers(0, 2 if dtype.kind == "b" else integers, shape)
            if dtype.kind in "iub"
            else generator.standard_normal(shape)
        )
        drawn.append(numbers.astype(dtype))
    return tuple(drawn)


def _results(graph: InternalGraph, arrays: Batch) -> list[np.ndarray]:
    at = moved(graph, "cpu0")  # sums have the same order for every batch there
    return [np.asarray(y.numpy(), np.float64) for y in interpret(at, as_tensors(arrays, at))]


def _near(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or not a.size:
        return False
    return bool(np.abs(a - b).max() <= _NEAR * np.abs(b).max())
