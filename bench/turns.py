"""Helpers of the benchmarks: few cores, and calls in turns, so that drift of the machine affects all alike."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def use_cores(count: int) -> None:
    """As many cores, and threads for every library; call it before the libraries are imported."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)


def pin_to_one_core() -> None:
    """One core and one thread for every library; call it before the libraries are imported."""
    use_cores(1)


def in_turns(
    calls: dict[str, Callable[[], object]], rounds: int, *, unmeasured: int = 2, rest: float = 0.0
) -> dict[str, list[tuple[float, float]]]:
    """Milliseconds and CPU milliseconds of each round's call of each; the first rounds, which fill caches, are not
    measured.

    With a `rest`, which calls with several threads need, a turn begins with so many seconds in which the threads of the
    one before stop waiting for work on the cores, and with two calls that are not measured.
    """
    times: dict[str, list[tuple[float, float]]] = {label: [] for label in calls}
    for i in range(rounds + unmeasured):
        for label, call in calls.items():
            if rest:
                time.sleep(rest)
                call()
                call()
            begin = time.perf_counter(), time.process_time()
            call()
            if i >= unmeasured:
                times[label].append(((time.perf_counter() - begin[0]) * 1e3, (time.process_time() - begin[1]) * 1e3))
    return times


def cpu_milliseconds(
    calls: dict[str, Callable[[], object]], rounds: int, *, unmeasured: int = 2
) -> dict[str, list[float]]:
    """CPU time of each round's call of each; the first rounds, which fill caches, are not measured."""
    times = in_turns(calls, rounds, unmeasured=unmeasured)
    return {label: [cpu for _, cpu in found] for label, found in times.items()}
