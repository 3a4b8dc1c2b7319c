"""Judges: a few samples that tell whether a stage did the network good, by the noise of its outputs."""

import math
import threading
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine import plan
from megengine.quantization.ranges import Batch, sample_number
from megengine.traced_module.ir.graph import InternalGraph

SAMPLES = 16  # eight differ too much: they undo stages that do good in a network whose layers are noisy
HELD_OUT = 8  # where layers are rounded in turn: the samples that judge teach nothing there
HARM = 0.9  # a stage is undone if the noise without it is below this part of the noise with it


@dataclass(slots=True)
class _Kept:
    """A sample by its number, and what the float network gives for it; None before it has run."""

    number: int
    arrays: Batch
    exact: list[np.ndarray] | None


class Judges:
    """Of all samples that it saw, `samples` with the smallest `sample_number`: the same for any order of the data.

    Plans that tell noise run on so many threads; several threads may look.
    """

    def __init__(self, graph: InternalGraph, *, samples: int = SAMPLES, threads: int = 1) -> None:
        self._graph, self._count, self._threads = graph, samples, threads
        self._kept: list[_Kept] = []
        self._lock = threading.Lock()

    def look(self, arrays: Batch, shown: Mapping[str, np.ndarray]) -> None:
        """See a sample, before the first noise is asked for, and the float network's results if they are `shown`."""
        number = sample_number(arrays)
        with self._lock:
            self._keep(number, arrays, shown)

    def _keep(self, number: int, arrays: Batch, shown: Mapping[str, np.ndarray]) -> None:
        full = len(self._kept) >= self._count
        if (full and number >= self._kept[-1].number) or any(number == one.number for one in self._kept):
            return
        names = [node.name for node in self._graph.outputs]
        exact = [np.array(shown[name]) for name in names] if shown.keys() >= set(names) else None
        insort(self._kept, _Kept(number, tuple(np.array(a) for a in arrays), exact), key=lambda one: one.number)
        del self._kept[self._count :]

    @property
    def samples(self) -> list[Batch]:
        """What is kept."""
        return [one.arrays for one in self._kept]

    def noise(self, integer: InternalGraph) -> float:
        """Noise of a network's outputs beside the float network's, relative to their power, added over the outputs.

        Infinite where results have other shapes, as they may if a length depends on values. Results of the float
        network that are not finite are left out.
        """
        self._run_unseen()
        compiled: Any = plan.compile(integer, threads=self._threads)
        noise, power = np.zeros(len(self._graph.outputs)), np.zeros(len(self._graph.outputs))
        for one in self._kept:
            for at, (a, b) in enumerate(zip(one.exact or [], compiled(*one.arrays), strict=True)):
                if a.shape != b.shape:
                    return math.inf
                finite = np.isfinite(a)
                exact = np.asarray(a, np.float64)[finite]
                noise[at] += np.square(exact - b[finite]).sum()
                power[at] += np.square(exact).sum()
        return float((noise / np.maximum(power, 1e-300)).sum())

    def _run_unseen(self) -> None:
        """Run the float network on the samples of which no results were shown."""
        if unseen := [one for one in self._kept if one.exact is None]:
            run: Any = plan.compile(self._graph, threads=self._threads)
            for one in unseen:
                one.exact = [np.array(y) for y in run(*one.arrays)]

    def __bool__(self) -> bool:
        return bool(self._kept)
