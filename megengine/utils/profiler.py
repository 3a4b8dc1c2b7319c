"""A profile of the ops that run, with start and duration, for a trace viewer (chrome://tracing, Perfetto)."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from megengine.core.effectless import warn_once
from megengine.core.errors import FileFormatError, OptionError, nearest
from megengine.dispatch import Op, interpose
from megengine.dispatch.apply import Interposer
from megengine.serialization import write_atomically
from megengine.tensor import Tensor

__all__ = ["Profiler", "is_profiling", "merge_trace_events", "profile", "scope"]

_FORMATS = ("chrome_timeline.json",)
_active: ContextVar[tuple[Profiler, ...]] = ContextVar("megengine_profilers", default=())


class _Recorder(Interposer):
    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events

    def apply(self, op: Op, tensors: tuple[Tensor, ...], attrs: dict[str, Any], proceed: Callable[..., Any]) -> Any:
        start = time.perf_counter_ns()
        try:
            return proceed()
        finally:
            shapes = [list(t.shape) for t in tensors]
            self.events.append(_event(op.name, "X", start, time.perf_counter_ns() - start, {"shapes": shapes}))


def _event(name: str, phase: str, at: int, duration: int | None = None, args: Any = None) -> dict[str, Any]:
    event = {"name": name, "ph": phase, "ts": at / 1e3, "pid": os.getpid(), "tid": threading.get_native_id()}
    if duration is not None:
        event["dur"] = duration / 1e3
    return event if args is None else {**event, "args": args}


class Profiler:
    """Records the ops of its `with` body, or between `start` and `stop`, and writes `path/<pid>.chrome_timeline.json`.

    Times are in microseconds, as trace viewers want them. Raises OptionError for other formats.

    >>> with Profiler("profile"):
    ...     net(x)
    """

    def __init__(
        self,
        path: str = "profile",
        format: str = "chrome_timeline.json",
        formats: list[str] | None = None,
        with_backtrace: bool = False,
        with_scopes: bool = False,
        **kwargs: Any,
    ) -> None:
        for name in [format] if formats is None else formats:
            if name not in _FORMATS:
                raise OptionError(
                    f"Profiler: format is {name!r}; expected {', '.join(_FORMATS)}{nearest(name, _FORMATS)}"
                )
        unused = {"with_backtrace": with_backtrace, "with_scopes": with_scopes, **kwargs}
        for name in (name for name, value in unused.items() if value):
            warn_once(f"Profiler({name}=...)", "the file holds ops with their shapes, and what `scope` names")
        self.path, self.formats = path, [format] if formats is None else list(formats)
        self._events: list[dict[str, Any]] = []
        self._stack: ExitStack | None = None

    def start(self) -> None:
        """Start recording. Raises OptionError if it records already."""
        if self._stack is not None:
            raise OptionError("Profiler.start: it records already; call stop() first")
        self._stack = ExitStack()
        self._stack.enter_context(interpose(_Recorder(self._events)))
        token = _active.set((*_active.get(), self))
        self._stack.callback(_active.reset, token)

    def stop(self) -> None:
        """Stop recording and write the file; without a recording, nothing."""
        if self._stack is not None:
            self._stack.close()
            self._stack = None
            self.dump()

    def step(self) -> Profiler:
        """Mark the end of a training step in the file."""
        self._events.append(_event("step", "i", time.perf_counter_ns()))
        return self

    def format_path(self, path: str, pid: int, format: str) -> str:
        """The path of a file."""
        return str(Path(path) / f"{pid}.{format}")

    def dump(self) -> None:
        """Write the events recorded so far."""
        for format in self.formats:
            target = Path(self.format_path(self.path, os.getpid(), format))
            target.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(target, json.dumps({"traceEvents": self._events}).encode())

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: calls of a function are recorded."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with self:
                return function(*args, **kwargs)

        return call


def profile(*args: Any, **kwargs: Any) -> Any:
    """Decorator: `@profile`, or `@profile(path=...)` with the arguments of `Profiler`."""
    if len(args) == 1 and not kwargs and callable(args[0]):
        return Profiler()(args[0])
    return Profiler(*args, **kwargs)


def is_profiling() -> bool:
    """True while a profiler records here."""
    return bool(_active.get())


@contextmanager
def scope(name: str) -> Iterator[None]:
    """A named span in the files of the profilers that record now."""
    start = time.perf_counter_ns()
    try:
        yield
    finally:
        for profiler in _active.get():
            profiler._events.append(_event(name, "X", start, time.perf_counter_ns() - start))


def merge_trace_events(directory: str) -> None:
    """Write `merge.chrome_timeline.json` with the events of all processes' files in a folder.

    Raises FileFormatError for a folder without such files, or with one that cannot be read.
    """
    files = sorted(Path(directory).glob("*[0-9].chrome_timeline.json"))
    if not files:
        raise FileFormatError(f"merge_trace_events: no *.chrome_timeline.json in {directory!r}; profile first")
    events = []
    for file in files:
        try:
            events += json.loads(file.read_bytes())["traceEvents"]
        except (ValueError, KeyError, TypeError) as exc:
            raise FileFormatError(f"merge_trace_events: {file} is no file of a Profiler ({exc})") from exc
    content = json.dumps({"traceEvents": events}).encode()
    write_atomically(Path(directory) / "merge.chrome_timeline.json", content)
