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
    """True if the first axis of every input is one open axis, and each of its rows has results of its own.

    Shapes say whether results have that axis too. Whether a row depends on others is tried with two rows of random
    numbers, which give together what each gives alone. Integers are 0 and 1, and further ones where the network takes
    such: a row of few words may hold nothing that another one lacks.
    """
    nodes = [*graph.inputs, *graph.outputs]
    if graph.of_calls or not nodes or not all(isinstance(n, TensorNode) and n.shape for n in nodes):
        return False
    rows = {name_of(n.spec.shape[0]) for n in nodes}
    if len(rows) != 1 or None in rows or counting(graph):
        return False
    if any(rows & names_of(n.spec.shape[1:]) for n in nodes):
        return False
    has_integers = any(storage_of(n.spec.dtype).kind in "iu" for n in graph.inputs)
    return bool(_rows_alone(graph, 2)) and all(_rows_alone(graph, most) is not False for most in _MORE if has_integers)


def _rows_alone(graph: InternalGraph, integers: int) -> bool | None:
    """Whether two rows give together what each gives alone; None if the network does not take integers below that."""
    both = _drawn(graph, 2, integers)
    try:
        together = _results(graph, both)
        alone = [_results(graph, row) for row in rows_of(both)]
    except _FAILURES:
        return None
    return all(_near(y[i : i + 1], alone[i][at]) for at, y in enumerate(together) for i in range(2))


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
