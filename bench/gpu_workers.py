"""Subjects of GPU benches, each in a process of its own: settings of libraries are the process's, and an error that
takes its context, such as an illegal address, takes that of no other. They prepare side by side; calls are timed in
turns.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

Call = Callable[[], Any]
INNER = 5  # calls between two events
SMALL = 1000  # calls of a turn by the clock
WARM = 6  # calls that compile, record, and fill pools
ANSWER = 120.0  # seconds that a measurement takes at most
SHORT = 20.0  # seconds of the one of a subject that is ready at the last moment


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


def _serve(connection: Any, subject: Subject, kernels: bool, begin: float) -> None:
    """The process of a subject: it prepares, and does what it is told until it is told to end, or fails."""
    os.environ.update(subject.environment)
    try:
        if kernels:
            import torch  # noqa: F401  (its profiler sees only what comes later)
        marks, clock = [begin], Clock(subject.library)
        marks.append(time.monotonic())
        call, times = subject.make(), 0 if subject.clock == "parts" else WARM
        marks.append(time.monotonic())
        for _ in range(times):
            call()
        clock.wait()
        if subject.clock != "parts":
            clock.trim()
        marks.append(time.monotonic())
        names = "import", "make", "first calls"
        connection.send(("ready", dict(zip(names, (b - a for a, b in itertools.pairwise(marks)), strict=True))))
        does = {
            "events": lambda: clock.by_events(call),
            "host": lambda: clock.by_host(call),
            "parts": call,
            "kernels": lambda: device_rows(call, clock),
        }
        while (word := connection.recv()) != "end":
            connection.send(("done", does[word]()))
    except (EOFError, BrokenPipeError):
        pass  # the bench has ended
    except BaseException as exc:  # a subject that does not run is a result
        traceback.print_exc()
        with suppress(OSError):
            connection.send(("failed", f"{type(exc).__name__}: {exc}"[:300]))
    os._exit(0)  # a context that is lost may hang where it is taken down


class Worker:
    """A subject in its process, which begins to prepare."""

    def __init__(self, subject: Subject, *, kernels: bool = False) -> None:
        context = multiprocessing.get_context("spawn")
        self.subject, self.missing = subject, ""
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, subject, kernels, time.monotonic()))
        self._process.start()
        theirs.close()

    def ask(self, word: str, patience: float = ANSWER) -> Any:
        """What the process answers; None if it failed, and `missing` says why."""
        if self.missing:
            return None
        with suppress(OSError):  # `answer` finds why
            self.connection.send(word)
        return self.answer(patience)

    def answer(self, patience: float) -> Any:
        """What the process says next; None if it failed, and `missing` says why."""
        kind, answer = "failed", "the process has ended"
        try:
            if self.connection.poll(max(0.0, patience)):
                kind, answer = self.connection.recv()
            else:
                answer = f"no answer within {patience:.0f} s"
        except (EOFError, OSError):
            self._process.join(5)
            answer = f"the process has ended, exit status {self._process.exitcode}"
        if kind == "failed":
            self.give_up(answer)
            return None
        return answer

    def give_up(self, why: str) -> None:
        """Kill the process, which is no use any more."""
        self.missing = why
        self._process.kill()
        self._process.join()

    def tell_end(self) -> None:
        """Let the process end."""
        with suppress(OSError, ValueError):
            self.connection.send("end")

    def end(self) -> None:
        """End the process."""
        self._process.join(2)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


class Turns:
    """Subjects that prepare side by side, so many at a time, and are measured in turns.

    A context: the processes end with it. `found` holds "alone", milliseconds of each subject when it was ready; "ms"
    of rounds and "seconds" by parts, a list for each label; "prepared", seconds by what they were for; and "missing"
    with reasons. `tell(label)` is called when a subject was measured alone or is missing, `tell("")` after a round.
    """

    def __init__(
        self, subjects: Sequence[Subject], *, beside: int, kernels: bool = False,
        tell: Callable[[str], None] = lambda label: None,
    ) -> None:  # fmt: skip
        self._subjects, self._beside, self._kernels, self._tell = subjects, max(1, beside), kernels, tell
        self._workers: list[Worker] = []
        names = "alone", "ms", "seconds", "prepared", "missing"
        self.found: dict[str, dict[str, Any]] = {name: {} for name in names}

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._workers:
            one.tell_end()
        for one in self._workers:
            one.end()

    def prepare(self, patience: float) -> None:
        """Prepare all that can be in so many seconds, and measure each as soon as it is ready."""
        until = time.monotonic() + patience
        coming: deque[Subject] = deque(self._subjects)
        under_way: list[Worker] = []
        while coming or under_way:
            while coming and len(under_way) < self._beside and time.monotonic() < until:
                under_way.append(Worker(coming.popleft(), kernels=self._kernels))
                self._workers.append(under_way[-1])
            ready = wait([one.connection for one in under_way], max(0.0, until - time.monotonic()))
            if not ready:
                break
            for one in [one for one in under_way if one.connection in ready]:
                under_way.remove(one)
                self._first(one, max(SHORT, until - time.monotonic()))
        why = f"not prepared within {patience:.0f} s"
        for one in under_way:
            one.give_up(why)
        for label in (*(one.subject.label for one in under_way), *(one.label for one in coming)):
            self.found["missing"][label] = why
            self._tell(label)

    def _first(self, one: Worker, patience: float) -> None:
        """Measure a subject that has prepared, or failed."""
        label, prepared = one.subject.label, one.answer(0)
        if prepared is not None:
            self.found["prepared"][label] = prepared
            self._measure(one, "alone", patience)
        if one.missing:
            self.found["missing"][label] = one.missing
        self._tell(label)

    def _measure(self, one: Worker, kind: str, patience: float = ANSWER) -> None:
        """Ask for the time of a call. The seconds of the first one by parts are a run like others."""
        label, answer = one.subject.label, one.ask(one.subject.clock, patience)
        if answer is None:
            self.found["missing"][label] = one.missing
        elif one.subject.clock == "parts":
            self.found["seconds"].setdefault(label, []).append(answer)
        elif kind == "alone":
            self.found["alone"][label] = answer
        else:
            self.found["ms"].setdefault(label, []).append(answer)

    def measure(self, rounds: int) -> None:
        """Let all that have prepared take turns."""
        for _ in range(rounds):
            for one in self._workers:
                if not one.missing and len(self.found["seconds"].get(one.subject.label, ())) < rounds:
                    self._measure(one, "ms")
            self._tell("")

    def kernels(self) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
        """What the device does for a call of each, by label."""
        for one in self._workers:
            rows = one.ask("kernels")
            if rows is not None:
                yield one.subject.label, rows
