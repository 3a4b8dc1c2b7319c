"""Subjects of GPU benches, each in a process of its own: settings of libraries are the process's, and an error that
takes its context, such as an illegal address, takes that of no other. Calls of all are timed in turns.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

Call = Callable[[], Any]
INNER = 5  # calls between two events
SMALL = 1000  # calls of a turn by the clock
WARM = 6  # calls that compile, record, and fill pools


@dataclass(frozen=True, slots=True)
class Subject:
    """What is measured: `make()` prepares a call in the process of the subject.

    `clock` is "events" (of the GPU), "host" (time of the processor, with one wait at the end) or "parts" (the call
    gives seconds by name); `environment` is set before libraries are imported.
    """

    label: str
    make: Callable[[], Call]
    clock: str = "events"
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def library(self) -> str:
        """The library that computes it: the first word of the label."""
        return self.label.split()[0]


class Clock:
    """Waiting and timing by a library: torch's, CuPy's for ours, or the processor's alone."""

    def __init__(self, library: str) -> None:
        self._event: Any = None
        if library == "torch":
            import torch

            self.wait, self.trim = torch.cuda.synchronize, torch.cuda.empty_cache
            self._event, self._elapsed = lambda: torch.cuda.Event(enable_timing=True), lambda a, b: a.elapsed_time(b)
        elif library == "ours":
            import cupy

            import megengine

            self.wait, self.trim = cupy.cuda.runtime.deviceSynchronize, megengine.coalesce_free_memory
            self._event, self._elapsed = cupy.cuda.Event, cupy.cuda.get_elapsed_time
        else:
            self.wait = self.trim = lambda: None

    def by_events(self, call: Call) -> float:
        """Milliseconds of a call, by events around several; one before is not measured."""
        call()
        if self._event is None:
            return self.by_host(call, INNER)
        begin, end = self._event(), self._event()
        begin.record()
        for _ in range(INNER):
            call()
        end.record()
        self.wait()
        return self._elapsed(begin, end) / INNER

    def by_host(self, call: Call, count: int = SMALL) -> float:
        """Milliseconds that the processor takes for a call."""
        self.wait()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        self.wait()
        return (time.perf_counter() - begin) * 1e3 / count


def device_rows(call: Call, clock: Clock, count: int = 2) -> list[tuple[str, float, float]]:
    """Names, microseconds and number of what the device does for a call, the longest first, by torch's profiler."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    clock.wait()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(count):
            call()
        clock.wait()
    rows: dict[str, list[float]] = {}
    for event in found.events():
        if event.device_type == DeviceType.CUDA:  # the others are calls of the driver, by the processor
            row = rows.setdefault(event.name, [0.0, 0.0])
            row[0] += event.time_range.elapsed_us() / count
            row[1] += 1 / count
    return sorted(((name, us, number) for name, (us, number) in rows.items()), key=lambda row: -row[1])


def _serve(connection: Any, subject: Subject, kernels: bool) -> None:
    """The process of a subject: it does what it is told until it is told to end, or fails."""
    os.environ.update(subject.environment)
    try:
        if kernels:
            import torch  # noqa: F401  (its profiler sees only what comes later)
        clock = Clock(subject.library)
        connection.recv()
        call, times = subject.make(), 0 if subject.clock == "parts" else WARM
        for _ in range(times):
            call()
        clock.wait()
        if subject.clock != "parts":
            clock.trim()
        connection.send(("ready", None))
        does = {
            "events": lambda: clock.by_events(call),
            "host": lambda: clock.by_host(call),
            "parts": call,
            "kernels": lambda: device_rows(call, clock),
        }
        while (word := connection.recv()) != "end":
            connection.send(("done", does[word]()))
    except EOFError:
        pass  # the bench has ended
    except BaseException as exc:  # a subject that does not run is a result
        traceback.print_exc()
        connection.send(("failed", f"{type(exc).__name__}: {exc}"[:300]))
    os._exit(0)  # a context that is lost may hang where it is taken down


class Worker:
    """A subject in its process, which has begun to import."""

    def __init__(self, subject: Subject, *, kernels: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.subject, self.missing = subject, ""
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, subject, kernels))
        self._process.start()
        theirs.close()

    def ask(self, word: str, patience: float) -> Any:
        """What the process answers; None if it failed, and `missing` says why."""
        if self.missing:
            return None
        kind, answer = "failed", "the process has ended"
        try:
            self._connection.send(word)
            if self._connection.poll(max(0.0, patience)):
                kind, answer = self._connection.recv()
            else:
                answer = "no time left"
        except (EOFError, OSError):
            self._process.join(5)
            answer = f"the process has ended, exit status {self._process.exitcode}"
        if kind == "failed":
            self.missing = answer
            self.end()
            return None
        return answer

    def end(self) -> None:
        """End the process."""
        with suppress(OSError, ValueError):
            self._connection.send("end")
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def in_processes(
    subjects: Sequence[Subject], rounds: int, patience: float, *, kernels: bool = False
) -> dict[str, dict[str, Any]]:
    """Times in turns of all subjects that can be prepared in so many seconds together.

    Results: "ms" or "seconds", a list for each label, "missing" with reasons, and "kernels" if these are asked for.
    """
    workers = [Worker(one, kernels=kernels) for one in subjects]
    try:
        begin = time.monotonic()
        for one in workers:  # one after the other: a library may time its own ways
            one.ask("prepare", min(patience / 2, patience - (time.monotonic() - begin)))  # one leaves time for others
        found: dict[str, dict[str, Any]] = {"ms": {}, "seconds": {}, "kernels": {}, "missing": {}}
        for _ in range(rounds):
            for one in workers:
                kind = "seconds" if one.subject.clock == "parts" else "ms"
                answer = one.ask(one.subject.clock, 120)
                if answer is not None:
                    found[kind].setdefault(one.subject.label, []).append(answer)
        for one in workers if kernels else ():
            answer = one.ask("kernels", 120)
            if answer is not None:
                found["kernels"][one.subject.label] = answer
        found["missing"] = {one.subject.label: one.missing for one in workers if one.missing}
        return found
    finally:
        for one in workers:
            one.end()
