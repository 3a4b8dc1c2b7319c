"""Batches of networks with an open batch as samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from megengine.core.errors import CalibrationError
from megengine.quantization.ranges.batches import Batch, Progress, Sink, as_batches, items_of, watched
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.opening import rows_of, takes_rows


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


@contextmanager
def told_by_sample(number: int, arrays: Batch) -> Iterator[None]:
    """An error of values in the body says which sample of the data, counted from 0, they are of."""
    try:
        yield
    except CalibrationError as error:
        what = "sample" if all(x.shape[:1] == (1,) for x in arrays) else "batch"
        raise CalibrationError(f"{error} ({what} {number} of the data, counted from 0)") from error


def stream(
    graph: InternalGraph,
    batches: Iterable[Any],
    sinks: Mapping[str, Sink],
    *,
    stage: str,
    look: Callable[[Batch], None] | None = None,
    run: Callable[[Batch], Any] | None = None,
    progress: Progress | None = None,
) -> None:
    """Run the graph on every sample, which `look` sees; sinks get values by node name, or `run` does it all.

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

    count = watched(graph, sinks)
    for number, arrays in enumerate(as_samples(Data(counted_items(), data.divided), graph)):
        if run is None:
            with told_by_sample(number, arrays):
                count(arrays)
        else:
            run(arrays)  # it may raise what an earlier sample gave
        if look is not None:
            look(arrays)
    if not done:
        raise CalibrationError("calibration: the data has no batch; expected at least one input of the model")
