"""Helpers of the benchmarks: one core, and calls in turns, so that drift of the machine affects all alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def pin_to_one_core() -> None:
    """One core and one thread for every library; call it before the libraries are imported."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[0]})
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def cpu_milliseconds(
    calls: dict[str, Callable[[], object]], rounds: int, *, unmeasured: int = 2
) -> dict[str, list[float]]:
    """CPU time of each round's call of each; the first rounds, which fill caches, are not measured."""
    times: dict[str, list[float]] = {label: [] for label in calls}
    for i in range(rounds + unmeasured):
        for label, call in calls.items():
            begin = time.process_time()
            call()
            if i >= unmeasured:
                times[label].append((time.process_time() - begin) * 1e3)
    return times
