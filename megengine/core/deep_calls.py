"""Room for deep nests: what calls itself deeper than Python's limit allows is run on a thread with a larger stack."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

from megengine.core.forks import lock_free_in_children

T = TypeVar("T")
R = TypeVar("R")

BYTES_PER_CALL = 8 << 10  # as Python reckons: 1,000 nested calls on stacks of 8 MiB
LARGEST_STACK = 1 << 30
MOST_CALLS = LARGEST_STACK // BYTES_PER_CALL
_THREAD = "megengine-deep-calls"

_lock = lock_free_in_children()
_wanted: list[int] = []  # limits of recursion that runs in progress need
_usual: list[int] = []  # the limit before the first of them


def room_left() -> int:
    """How many more calls may nest here."""
    depth, frame = 0, sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return sys.getrecursionlimit() - depth


def levels(root: R, parts: Callable[[R], list[R]]) -> int:
    """How many levels of parts in parts something has, itself included; what holds itself ends there."""
    depths: dict[int, int] = {}
    below: dict[int, list[R]] = {}
    todo = [root]
    while todo:
        at = todo[-1]
        if id(at) not in below:
            below[id(at)] = parts(at)
            todo += [each for each in below[id(at)] if id(each) not in below]
            continue
        todo.pop()
        if id(at) not in depths:
            depths[id(at)] = 1 + max([depths.get(id(each), 0) for each in below[id(at)]], default=0)
    return depths[id(root)]


def has_room_already() -> bool:
    """True on a thread that `with_room` made."""
    return threading.current_thread().name == _THREAD


def with_room(calls: int, run: Callable[[], T]) -> T:
    """The result of `run()`, in which so many calls may nest.

    Where they do not fit it is run on a thread of its own, in a copy of the caller's context, and Python's limit of
    recursion is higher until it ends. What it raises is raised here; an interrupt is, when it has ended.

    Raises:
        RecursionError: the stack would be larger than 1 GiB, or the system does not give it; the message tells.
    """
    if calls <= room_left():
        return run()
    size = max(calls, sys.getrecursionlimit()) * BYTES_PER_CALL  # the limit is the least that Python lets it nest
    if size > LARGEST_STACK:
        raise RecursionError(
            f"{calls:,} nested calls need a stack of {size >> 20:,} MiB; at most {LARGEST_STACK >> 20:,}"
        )
    results: list[T] = []
    failures: list[BaseException] = []
    context = copy_context()

    def body() -> None:
        try:
            results.append(context.run(run))
        except BaseException as exc:  # raised in the thread that waits
            failures.append(exc)

    with _limit(calls):
        _finish(body, size)
    try:
        if failures:
            raise failures[0]
        return results[0]
    finally:
        failures.clear()  # a traceback refers to its frames, and they would to it


@contextmanager
def _limit(calls: int) -> Iterator[None]:
    """A limit of recursion of so many calls at least, of the whole process: threads may need different ones."""
    with _lock:
        if not _wanted:
            _usual[:] = [sys.getrecursionlimit()]
        _wanted.append(calls)
        sys.setrecursionlimit(max(*_usual, *_wanted))
    try:
        yield
    finally:
        with _lock:
            _wanted.remove(calls)
            sys.setrecursionlimit(max(*_usual, *_wanted, 1))


def _finish(body: Callable[[], None], size: int) -> None:
    """Run `body` on a thread with a stack of so many bytes, and wait until it has ended.

    An interrupt, which only the main thread hears, is raised when the other thread has ended; a second one at once.
    """
    interrupts: list[KeyboardInterrupt] = []
    ended: list[bool] = []
    done = threading.Lock()  # not `join`, which takes a thread for ended when it is interrupted (bpo-45274)
    done.acquire()

    def work() -> None:
        try:
            if not interrupts:
                body()
        finally:
            ended.append(True)
            done.release()

    thread = threading.Thread(target=work, name=_THREAD, daemon=True)
    try:
        _start(thread, size)
        done.acquire()
    except KeyboardInterrupt as exc:
        interrupts.append(exc)
        if thread.ident is not None and not ended:  # where it has not begun it finds the interrupt when it does
            done.acquire()
    if interrupts:
        raise interrupts[0]


def _start(thread: threading.Thread, size: int) -> None:
    with _lock:
        before = threading.stack_size(size)
        try:
            thread.start()
        except RuntimeError as exc:
            raise RecursionError(f"the system gives no stack of {size >> 20:,} MiB: {exc}") from exc
        finally:
            threading.stack_size(before)
