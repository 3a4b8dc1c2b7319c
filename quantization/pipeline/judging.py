"""Judges: a few samples that tell whether a stage did the network good, by the noise of its outputs."""

import math
from bisect import insort
from typing import Any

import numpy as np

from megengine import plan
from megengine.quantization.ranges import Batch, sample_number
from megengine.traced_module.ir.graph import InternalGraph

SAMPLES = 8
HARM = 0.9  # a stage is undone if the noise without it is below this part of the noise with it


class Judges:
    """Of all samples that it saw, those with the smallest `sample_number`: the same for any order of the data."""

    def __init__(self, graph: InternalGraph) -> None:
        self._graph = graph
        self._kept: list[tuple[int, Batch]] = []
        self._exact: list[list[np.ndarray]] = []

    def look(self, arrays: Batch) -> None:
        """See a sample, before the first noise is asked for."""
        number = sample_number(arrays)
        full = len(self._kept) >= SAMPLES
        if (full and number >= self._kept[-1][0]) or any(number == known for known, _ in self._kept):
            return
        insort(self._kept, (number, tuple(np.array(a) for a in arrays)), key=lambda one: one[0])
        del self._kept[SAMPLES:]

    @property
    def samples(self) -> list[Batch]:
        """What is kept."""
        return [arrays for _, arrays in self._kept]

    def noise(self, integer: InternalGraph) -> float:
        """Noise of a network's outputs beside the float network's, relative to their power, added over the outputs.

        Infinite where results have other shapes, as they may if a length depends on values.
        """
        if not self._exact:
            exact_run: Any = plan.compile(self._graph)
            self._exact = [[np.array(y) for y in exact_run(*arrays)] for arrays in self.samples]
        compiled: Any = plan.compile(integer)
        noise, power = np.zeros(len(self._graph.outputs)), np.zeros(len(self._graph.outputs))
        for arrays, wanted in zip(self.samples, self._exact, strict=True):
            for at, (a, b) in enumerate(zip(wanted, compiled(*arrays), strict=True)):
                if a.shape != b.shape:
                    return math.inf
                exact = np.asarray(a, np.float64)
                noise[at] += np.square(exact - b).sum()
                power[at] += np.square(exact).sum()
        return float((noise / np.maximum(power, 1e-300)).sum())

    def __bool__(self) -> bool:
        return bool(self._kept)
