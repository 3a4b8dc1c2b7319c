"""The choice of tiles of integer convolutions on a GPU by measuring them on the GPU itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.kernels import cuda
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Runtime
from megengine.kernels.problem import Problem
from megengine.plan.tuning import Winners, signature

_LAUNCHES = 10  # of a recording, so that the host does not count
_ROUNDS = 7


class GpuTuner:
    """Chooses tiles for the layers of plans of one GPU. `keep` writes what was measured."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        kernels = cuda.int_layers.digest()
        self._winners = Winners({"gpu": runtime.model, "architecture": runtime.architecture, "kernels": kernels})
        self.keep = self._winners.keep

    def tile(self, problem: Problem) -> cuda.int_layers.Tile | None:
        """The fastest tile of a qconv2d, known or measured; None where tensor cores do not compute it."""
        tiles = {tile.name: tile for tile in candidates(problem, self.runtime)}
        if not tiles:
            return None
        key = json.dumps([problem.op, *signature(problem), [*tiles]])
        winner = self._winners.get(key)
        if winner not in tiles:
            times = microseconds(self.runtime, problem)
            winner = min(times, key=times.__getitem__).name
            self._winners.put(key, winner)
        return tiles[winner]


def candidates(problem: Problem, runtime: Runtime) -> tuple[cuda.int_layers.Tile, ...]:
    """The tiles by which tensor cores may compute a qconv2d; none where they do not."""
    layers = cuda.int_layers
    form = layers.prepared(problem, layers.useful_pitch(problem), runtime.architecture).form
    return () if form.tile is None else layers.tiles_of(form.grain)


def operands(problem: Problem, runtime: Runtime) -> list[DeviceArray]:
    """Zeros for a qconv2d, as plans have them: x and the residual channels-last."""
    pitch, made = cuda.int_layers.useful_pitch(problem), []
    for i, spec in enumerate(problem.inputs):
        shape = spec.shape
        if i in (0, 5):
            shape = (shape[0], *shape[2:], shape[1] if i else pitch)
        made.append(runtime.zeros(shape, storage_of(spec.dtype)))
    return made


def microseconds(
    runtime: Runtime, problem: Problem, arrays: list[DeviceArray] | None = None, rounds: int = _ROUNDS
) -> dict[cuda.int_layers.Tile, float]:
    """The median time of a launch of a qconv2d by each tile, measured in turns, on zeros or the arrays."""
    arrays = arrays or operands(problem, runtime)
    layers, pitch = cuda.int_layers, arrays[0].shape[3]
    form = layers.prepared(problem, pitch, runtime.architecture).form
    forms = [replace(form, tile=tile) for tile in candidates(problem, runtime)]
    runtime.prepare([layers.prepared(problem, pitch, runtime.architecture, one).launch.program for one in forms])
    runs = {tile: _several(runtime, problem, arrays, tile) for tile in candidates(problem, runtime)}
    times: dict[cuda.int_layers.Tile, list[float]] = {tile: [] for tile in runs}
    for _ in range(rounds + 1):
        for tile, run in runs.items():
            times[tile].append(runtime.milliseconds(run) * 1e3 / _LAUNCHES)
    return {tile: float(np.median(taken[1:])) for tile, taken in times.items()}


def _several(
    runtime: Runtime, problem: Problem, arrays: list[DeviceArray], tile: cuda.int_layers.Tile
) -> Callable[[], Any]:
    """Launches of a layer, recorded where the device can do so; results are overwritten, as in the memory of a plan."""
    layer = partial(cuda.int_layers.conv_last, problem, *arrays, tile=tile)

    def work() -> list[DeviceArray]:
        y = layer()
        for _ in range(_LAUNCHES - 1):
            y = layer()
        return [y]

    recording = runtime.record(work)
    return recording.replay if recording else work
