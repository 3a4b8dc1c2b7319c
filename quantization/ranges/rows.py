"""Whether the open first axis of a network is the batch, and batches of such networks as samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import CalibrationError, MegEngineError
from megengine.core.sizes import name_of, names_of
from megengine.quantization.ranges.batches import Batch, Progress, Sink, as_batches, as_tensors, items_of, watched
from megengine.traced_module import interpret
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.sizes import counting

_NEAR = 1e-3  # of the largest result: sums of floats may have another order in a larger batch
_FAILURES = (MegEngineError, ArithmeticError, IndexError, ValueError)  # of ops that random numbers do not suit


def takes_rows(graph: InternalGraph) -> bool:
    """True if the first axis of every input is one open axis, and each of its rows has results of its own.

    Shapes say whether results have that axis too. Whether a row depends on others is tried with two rows of random
    numbers, which give together what each gives alone; integers are 0 and 1.
    """
    nodes = [*graph.inputs, *graph.outputs]
    if graph.of_calls or not nodes or not all(isinstance(n, TensorNode) and n.shape for n in nodes):
        return False
    rows = {name_of(n.spec.shape[0]) for n in nodes}
    if len(rows) != 1 or None in rows or counting(graph):
        return False
    if any(rows & names_of(n.spec.shape[1:]) for n in nodes):
        return False
    generator = np.random.default_rng(0)
    both = tuple(_drawn(generator, node) for node in graph.inputs)
    try:
        together = _results(graph, both)
        alone = [_results(graph, row) for row in rows_of(both)]
    except _FAILURES:
        return False
    return all(_near(y[i : i + 1], alone[i][at]) for at, y in enumerate(together) for i in range(2))


def rows_of(arrays: Batch) -> Iterator[Batch]:
    """Each row of a batch, as a batch of one."""
    for i in range(len(arrays[0])):
        yield tuple(array[i : i + 1] for array in arrays)


@dataclass(frozen=True, slots=True)
class Data:
    """Batches that are divided into rows, or are not: an answer of `takes_rows` for all graphs made of one network."""

    batches: Iterable[Any]
    divided: bool

    @classmethod
    def of(cls, batches: Iterable[Any], graph: InternalGraph) -> Data:
        """Batches as a graph takes them, which is tried once."""
        return cls(items_of(batches, graph), takes_rows(graph))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def as_samples(batches: Iterable[Any], graph: InternalGraph) -> Iterator[Batch]:
    """As `as_batches`; batches of a network that `takes_rows` are divided into rows."""
    divided = batches.divided if isinstance(batches, Data) else None
    for arrays in as_batches(batches.batches if isinstance(batches, Data) else batches, graph):
        if divided is None:
            divided = takes_rows(graph)
        if divided:
            yield from rows_of(arrays)
        else:
            yield arrays


def stream(
    graph: InternalGraph,
    batches: Iterable[Any],
    sinks: Mapping[str, Sink],
    *,
    stage: str,
    look: Callable[[Batch], None] | None = None,
    progress: Progress | None = None,
) -> None:
    """Run the graph on every sample, which `look` sees; sinks get values by node name.

    Raises CalibrationError if no batch fits.
    """
    data = batches if isinstance(batches, Data) else Data.of(batches, graph)
    total = len(data.batches) if isinstance(data.batches, Sized) else None
    done = 0

    def counted_items() -> Iterator[Any]:
        nonlocal done
        for item in data.batches:
            yield item
            done += 1
            if progress is not None:
                progress(stage, done, total)

    run = watched(graph, sinks)
    for arrays in as_samples(Data(counted_items(), data.divided), graph):
        run(arrays)
        if look is not None:
            look(arrays)
    if not done:
        raise CalibrationError("calibration: the data has no batch; expected at least one input of the model")


def _drawn(generator: np.random.Generator, node: TensorNode) -> np.ndarray:
    shape, dtype = (2, *node.spec.example.shape[1:]), storage_of(node.spec.dtype)
    drawn = generator.integers(0, 2, shape) if dtype.kind in "iub" else generator.standard_normal(shape)
    return drawn.astype(dtype)


def _results(graph: InternalGraph, arrays: Batch) -> list[np.ndarray]:
    return [np.asarray(y.numpy(), np.float64) for y in interpret(graph, as_tensors(arrays, graph))]


def _near(a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or not a.size:
        return False
    return bool(np.abs(a - b).max() <= _NEAR * np.abs(b).max())
