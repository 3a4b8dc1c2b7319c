"""Which of cuDNN's plans a convolution takes, by their times; what was found is kept in a file for each kind of GPU."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable

import numpy as np

from megengine.kernels.cuda import settings
from megengine.kernels.cuda.compiler import cache_folder, store, stored
from megengine.kernels.problem import Problem

_BY_DEFAULT = 16  # plans that are timed
_WORTH = 1 << 28  # products of a convolution that is timed unasked: it then takes longer than a launch
_AGAIN = 4  # times that a plan is timed that may be the fastest
MOST_WORKSPACE = 1 << 30  # bytes that a timed plan may need


class Tuning:
    """A setting of the process: how many plans of a convolution are timed at its first call; with 0, cuDNN's first is
    taken. None, the default: large gradients of float32 are timed, as cuDNN ranks plans that read fewer bits.

    Timed plans may differ from machine to machine, and so the last bits of results; on one, the file keeps them.
    """

    plans = settings.count("MEGENGINE_CUDA_TUNE", None)


def plans_timed(problem: Problem) -> int:
    """How many plans of a convolution are timed; 0 for none."""
    if Tuning.plans is not None:
        return Tuning.plans if Tuning.plans > 1 else 0
    of_gradients = "_backward_" in problem.op and problem.inputs[0].dtype == np.float32
    return _BY_DEFAULT if of_gradients and products_of(problem) >= _WORTH else 0


def products_of(problem: Problem) -> int:
    """Products that a gradient of a convolution adds: those of the convolution itself."""
    by_weight = problem.op.endswith("backward_weight")
    ct, weight = (problem.inputs[1], problem.outputs[0]) if by_weight else problem.inputs[:2]
    return ct.size * weight.size // max(1, weight.shape[0])


def fastest(count: int, candidates: int, milliseconds: Callable[[int], float | None]) -> int | None:
    """The fastest of the first `count` candidates that run; `milliseconds(i)` runs one, None where it cannot be."""
    best: tuple[float, int] | None = None
    timed = 0
    for index in range(candidates):
        if timed == count:
            break
        took = milliseconds(index)
        if took is None:
            continue
        timed += 1
        if best is None or took < 1.5 * best[0]:
            again = [t for _ in range(_AGAIN) if (t := milliseconds(index)) is not None]
            best = min((min(took, *again), index), best or (np.inf, 0))
    return None if best is None else best[1]


class Choices:
    """The plans of one kind of GPU, by problem: `kind` names it, and the versions of the libraries."""

    def __init__(self, kind: str) -> None:
        digest = hashlib.sha256(kind.encode()).hexdigest()[:20]
        self._path = os.path.join(cache_folder(), f"convolutions_{digest}.json")
        self._lock = threading.Lock()
        self._found: dict[str, int] | None = None

    def of(self, key: str) -> int | None:
        """The plan that was fastest; None if that was not tried."""
        with self._lock:
            if self._found is None:
                self._found = self._read()
            return self._found.get(key)

    def keep(self, key: str, plan: int) -> None:
        """Note the fastest plan, in the file too, where that can be written."""
        with self._lock:
            self._found = {**self._read(), **(self._found or {}), key: plan}
            store(self._path, json.dumps(self._found, indent=0, sort_keys=True).encode())

    def _read(self) -> dict[str, int]:
        with contextlib.suppress(ValueError):
            found = json.loads(stored(self._path) or b"{}")
            if isinstance(found, dict):
                return {key: plan for key, plan in found.items() if type(plan) is int and plan >= 0}
        return {}
