"""Statistics of a network that runs on a GPU: values stay there, and only what was counted is copied.

The processor adds what one batch gave to the statistics while the device runs the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import runtime_of
from megengine.kernels.cuda.statistics import Measured, Room, measure
from megengine.kernels.cuda.tensor_cores import Precision
from megengine.quantization.ranges import Batch, Histogram, TensorStatistics
from megengine.tensor import Tensor
from megengine.traced_module.elsewhere import Elsewhere
from megengine.traced_module.interpret import as_tensors, interpret
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.opening.resizing import at_batch
from megengine.traced_module.sizes import has_open_axes

TOGETHER = 32  # samples of a run, where the network takes any number
_SHOWN = 4 << 20  # bytes of the results of a run that are copied
_NOISE = 1e-3  # of the largest result: more than the order of float sums makes


@dataclass(slots=True)
class _Counted:
    """A batch whose numbers are on their way: where they lie, and how to get them."""

    graph: InternalGraph
    batches: Sequence[Batch]
    samples: int  # that count
    run: int  # of the run: the last may be there to fill it
    measured: list[tuple[str, Measured]] = field(default_factory=list)
    copies: Callable[[], list[np.ndarray]] | None = None
    results: Sequence[Callable[[], np.ndarray]] | None = None  # None where they are not copied

    def part(self, x: DeviceArray) -> DeviceArray:
        """The values of the samples that count."""
        if self.samples == self.run or x.shape[:1] != (self.run,):
            return x
        return DeviceArray(x.runtime, x.owner, x.address, (self.samples, *x.shape[1:]), x.dtype)


class DeviceCounter:
    """Runs a graph on a device and adds to the statistics of its edges.

    A network for one sample takes several where its samples do not depend on each other, which the first ones tell;
    one for any number of `rows` does, in batches of one row each. `finish` runs those that are left. `look` sees every
    batch when it has been counted, and its results by node name if they are copied.
    """

    def __init__(
        self, graph: InternalGraph, edges: dict[str, TensorStatistics], samples: int, device: str, *, rows: bool,
        look: Callable[[Batch, Mapping[str, np.ndarray]], None] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.edges, self.samples, self.look = graph, edges, samples, look
        self.there = Elsewhere(graph, device)
        self.together = TOGETHER if rows or (samples == 1 and not has_open_axes(graph)) else 1
        # by the number of samples; None where there is none
        self.graphs: dict[int, InternalGraph | None] = dict.fromkeys(range(1, TOGETHER + 1) if rows else (1,), graph)
        self.waiting: list[Batch] = []
        self.runtime = runtime_of(device)
        self.under_way: _Counted | None = None
        self.full = False  # whether as many as run together have run

    def take(self, arrays: Batch) -> None:
        """Run a batch of the graph, or keep it until there are enough of its shape to run together.

        What it keeps, and `look` sees, are copies: data may be given in the same memory again and again.
        """
        arrays = tuple(np.array(array) for array in arrays)
        if self.waiting and any(a.shape != b.shape for a, b in zip(arrays, self.waiting[0], strict=True)):
            self._start()
        self.waiting.append(arrays)
        if len(self.waiting) == self.together:
            self._start()

    def finish(self) -> None:
        """Run the samples that wait, and count all."""
        self._start()
        self._settle()
        self.runtime.synchronize()  # raises what a kernel refused

    def _start(self) -> None:
        """Run the samples that wait."""
        batches, self.waiting = self.waiting, []
        count = len(batches)
        samples = self.samples * count
        if 1 < count < self.together and self.full and self.graphs.get(self.together) is not None:
            batches += [batches[-1]] * (self.together - count)  # libraries have planned that size
            count = self.together
        self.full = self.full or count == self.together
        if count and count not in self.graphs:
            self.graphs[count] = self._for(batches)
        graph = self.graphs.get(count)
        if graph is not None:
            self._count_all(graph, batches, samples)
            return
        for arrays in batches:
            self._count_all(self.graph, [arrays], self.samples)

    def _for(self, batches: Sequence[Batch]) -> InternalGraph | None:
        """The graph for so many samples; None where it gives other results for the last of these than it alone."""
        try:
            graph = at_batch(self.graph, len(batches))
        except MegEngineError:
            return None
        if not self.edges.keys() <= {node.name for node in graph.nodes()}:
            return None
        alone, among = self._alone(batches[-1]), _numbers(self._run(graph, batches, lambda node, value: None))
        for one, all_ in zip(alone, among, strict=True):
            last = all_[-1:] if all_.ndim else all_
            if last.shape != one.shape or np.abs(last - one).max(initial=0) > _NOISE * np.abs(one).max(initial=0):
                return None
        return graph

    def _alone(self, arrays: Batch) -> list[np.ndarray]:
        """The results of a batch of the graph, by the processor, where libraries need no time to plan another size."""
        if Precision.tf32:
            return _numbers(self._run(self.graph, [arrays], lambda node, value: None))
        return _numbers(interpret(self.graph, as_tensors(arrays, self.graph)))

    def _run(self, graph: InternalGraph, batches: Sequence[Batch], seen: Any) -> list[Tensor]:
        """The results of a graph on samples together, whose values `seen(node, value)` sees."""
        return self.there.run(graph, [self.runtime.upload_parts(parts) for parts in zip(*batches, strict=True)], seen)

    def _count_all(self, graph: InternalGraph, batches: Sequence[Batch], samples: int) -> None:
        """Run a graph on samples, and count the values of the run before meanwhile."""
        counted, room = _Counted(graph, batches, samples, self.samples * len(batches)), Room(self.runtime)

        def seen(node: Any, value: Tensor) -> None:
            if node.name in self.edges:
                self._measure(self.edges[node.name], value, counted, room)

        results = self._run(graph, batches, seen)
        counted.copies = room.copy()
        if self.look is not None and self._shows(results, counted.run):
            counted.results = [self.runtime.download_later(one._storage()) for one in results]
        self._settle()
        self.under_way = counted

    def _shows(self, results: Sequence[Tensor], run: int) -> bool:
        """Whether results tell what the float network gives, row by row, and are few."""
        plain = all(one.dtype == np.float32 and (run == 1 or one.shape[:1] == (run,)) for one in results)
        return plain and not Precision.tf32 and 4 * sum(one.size for one in results) <= _SHOWN

    def _measure(self, seen: TensorStatistics, value: Tensor, counted: _Counted, room: Room) -> None:
        """Let the device count a value; the processor, if it is of another form."""
        x, samples = counted.part(value._storage()), counted.samples
        if not x.size:
            return
        if x.dtype != np.float32 or x.shape[:1] != (samples,):
            seen.update(x.numpy(), samples=samples)
            return
        axis = seen.axis_of(x.ndim) or None
        averaged = seen.averaged and axis is not None
        one = measure(x, samples, axis, room, bins=seen.histogram.bins, averaged=averaged)
        counted.measured.append((seen.name, one))

    def _settle(self) -> None:
        """Add what the run before has counted. Raises CalibrationError for values that are not finite."""
        counted, self.under_way = self.under_way, None
        if counted is None or counted.copies is None:
            return
        copies = counted.copies()
        for name, one in counted.measured:
            ends, seen = one.ends.of(copies), self.edges[name]
            if not np.isfinite(ends).all():
                self._refuse(counted)
            by_channel = one.lows.of(copies), one.highs.of(copies)
            seen.add(one.size, ends, by_channel if one.by_channel else None)
            exponent, first, bins = one.used.of(copies).tolist()
            counts = one.counts.of(copies)[:bins].astype(np.int64)
            seen.histogram.merge(Histogram(seen.histogram.bins, exponent, first, counts))
            if one.parts is not None:
                seen.means.join(one.parts.of(copies), one.samples)
        if self.look is not None:
            self._show(counted, self.look)

    def _show(self, counted: _Counted, look: Callable[[Batch, Mapping[str, np.ndarray]], None]) -> None:
        """Let the batches be seen that count."""
        names, several = [node.name for node in counted.graph.outputs], len(counted.batches) > 1
        results = None if counted.results is None else [one() for one in counted.results]
        for i, arrays in enumerate(counted.batches[: counted.samples // self.samples]):
            rows = [y[i : i + 1] if several else y for y in results or ()]
            look(arrays, dict(zip(names, rows, strict=True)) if rows else {})

    def _refuse(self, counted: _Counted) -> None:
        """Run a batch again up to the first value that is not finite, and raise its error."""

        def seen(node: Any, value: Tensor) -> None:
            if node.name in self.edges and not np.isfinite(x := counted.part(value._storage()).numpy()).all():
                raise self.edges[node.name].refusal(x)

        self._run(counted.graph, counted.batches, seen)


def _numbers(results: Sequence[Tensor]) -> list[np.ndarray]:
    return [y.numpy().astype(np.float64) for y in results]
