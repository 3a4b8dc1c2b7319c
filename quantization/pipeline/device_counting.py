"""Statistics of a network that runs on a GPU: values stay there, and only what was counted is copied."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.kernels import cuda
from megengine.quantization.ranges import Batch, TensorStatistics
from megengine.tensor import Tensor
from megengine.traced_module.elsewhere import Elsewhere
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.opening.resizing import at_batch
from megengine.traced_module.sizes import has_open_axes

TOGETHER = 32  # samples of a run, where the network takes any number
_NOISE = 1e-3  # of the largest result: more than the order of float sums makes


class DeviceCounter:
    """Runs a graph on a device and adds to the statistics of its edges.

    A network for one sample takes several where its samples do not depend on each other, which the first ones tell;
    `finish` runs those that are left.
    """

    def __init__(self, graph: InternalGraph, edges: dict[str, TensorStatistics], samples: int, device: str) -> None:
        self.graph, self.edges, self.samples = graph, edges, samples
        self.there = Elsewhere(graph, device)
        self.together = 1 if samples > 1 or has_open_axes(graph) else TOGETHER
        self.graphs: dict[int, InternalGraph | None] = {1: graph}  # by the number of samples; None where there is none
        self.waiting: list[Batch] = []

    def take(self, arrays: Batch) -> None:
        """Run a batch of the graph, or keep it until there are enough to run together."""
        self.waiting.append(arrays)
        if len(self.waiting) == self.together:
            self.finish()

    def finish(self) -> None:
        """Run the samples that wait."""
        batches, self.waiting = self.waiting, []
        count = len(batches)
        if count and count not in self.graphs:
            self.graphs[count] = self._for(batches)
        graph = self.graphs.get(count)
        if graph is not None:
            self._count_all(graph, _joined(batches), self.samples * count)
            return
        for arrays in batches:
            self._count_all(self.graph, arrays, self.samples)

    def _for(self, batches: Sequence[Batch]) -> InternalGraph | None:
        """The graph for so many samples; None where it gives other results for the last of these than it alone."""
        try:
            graph = at_batch(self.graph, len(batches))
        except MegEngineError:
            return None
        if not self.edges.keys() <= {node.name for node in graph.nodes()}:
            return None
        alone, among = self._results(self.graph, batches[-1]), self._results(graph, _joined(batches))
        for one, all_ in zip(alone, among, strict=True):
            last = all_[-1:] if all_.ndim else all_
            if last.shape != one.shape or np.abs(last - one).max(initial=0) > _NOISE * np.abs(one).max(initial=0):
                return None
        return graph

    def _results(self, graph: InternalGraph, arrays: Batch) -> list[np.ndarray]:
        return [y.numpy().astype(np.float64) for y in self.there.run(graph, arrays, None)]

    def _count_all(self, graph: InternalGraph, arrays: Batch, samples: int) -> None:
        """Run a graph on samples and count the values of its edges."""

        def seen(node: Any, value: Tensor) -> None:
            if node.name in self.edges:
                self._count(self.edges[node.name], value, samples)

        self.there.run(graph, arrays, seen)

    def _count(self, seen: TensorStatistics, value: Tensor, samples: int) -> None:
        x = value._storage()
        if not x.size:
            return
        if x.dtype != np.float32 or x.shape[:1] != (samples,):
            seen.update(value.numpy(), samples=samples)
            return
        axis = seen.axis_of(x.ndim)
        lo, hi, sums = cuda.statistics.spans(x, samples, axis or None)
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise seen.refusal(value.numpy())
        means = (sums / (x.size // sums.size)).astype(np.float32) if seen.averaged and axis else None
        seen.add(x.size, lo, hi, means, axis or None, partial(cuda.statistics.count, x))


def _joined(batches: Sequence[Batch]) -> Batch:
    """Samples as one batch."""
    return batches[0] if len(batches) == 1 else tuple(np.concatenate(parts) for parts in zip(*batches, strict=True))
