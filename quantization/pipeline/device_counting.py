"""Statistics of a network that runs on a GPU: values stay there, and only what was counted is copied."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.kernels.cuda import statistics as counting
from megengine.quantization.ranges import Batch, TensorStatistics
from megengine.tensor import Tensor
from megengine.traced_module import interpret, lower
from megengine.traced_module.interpret import as_tensors
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.opening import open_batch
from megengine.traced_module.sizes import has_open_axes

TOGETHER = 32  # samples of a run, where the network takes any number


class DeviceCounter:
    """Runs a graph on a device and adds to the statistics of its edges.

    A network for one sample takes several where its samples do not depend on each other; `finish` runs those that are
    left.
    """

    def __init__(self, graph: InternalGraph, edges: dict[str, TensorStatistics], samples: int, device: str) -> None:
        self.edges, self.device = edges, device
        self.graph, self.samples, self.together = graph, samples, 1
        if samples == 1 and not has_open_axes(graph):
            with suppress(MegEngineError):  # samples that depend on each other take one run each
                self.graph, self.together = lower(open_batch(graph.clone())).graph, TOGETHER
        if not edges.keys() <= {node.name for node in self.graph.nodes()}:
            self.graph, self.together = graph, 1
        self.constants = {
            e.outputs[0].name: Tensor(e.value, device=device) for e in self.graph.exprs() if isinstance(e, Constant)
        }
        self.waiting: list[Batch] = []

    def take(self, arrays: Batch) -> None:
        """Run a batch of the graph, or keep it until there are enough to run together."""
        self.waiting.append(arrays)
        if len(self.waiting) == self.together:
            self.finish()

    def finish(self) -> None:
        """Run the samples that wait."""
        if not self.waiting:
            return
        batches, self.waiting = self.waiting, []
        arrays = tuple(np.concatenate(parts) for parts in zip(*batches, strict=True)) if batches[1:] else batches[0]
        self.run(arrays, self.samples * len(batches))

    def run(self, arrays: Batch, samples: int) -> None:
        """Run the graph on samples and count the values of its edges."""

        def look(node: Any, value: Tensor) -> Tensor:
            placed = self.constants[node.name] if isinstance(node.expr, Constant) else value
            if node.name in self.edges:
                self._count(self.edges[node.name], placed, samples)
            return placed

        tensors = [Tensor(t, device=self.device) for t in as_tensors(arrays, self.graph)]
        interpret(self.graph, tensors, on_value=look)

    def _count(self, seen: TensorStatistics, value: Tensor, samples: int) -> None:
        x = value._storage()
        if not x.size:
            return
        if x.dtype != np.float32 or x.shape[:1] != (samples,):
            seen.update(value.numpy(), samples=samples)
            return
        axis = seen.axis_of(x.ndim)
        lo, hi, sums = counting.spans(x, samples, axis or None)
        if not (np.isfinite(lo).all() and np.isfinite(hi).all()):
            raise seen.refusal(value.numpy())
        means = (sums / (x.size // sums.size)).astype(np.float32) if seen.averaged and axis else None
        seen.add(x.size, lo, hi, means, axis or None, partial(counting.count, x))
