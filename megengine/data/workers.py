"""Worker processes that make batches: parent and workers speak over one pipe each, and share no lock.

A worker that ends, even by SIGKILL, leaves nothing: its pipe closes, and arrays lie in files of memory without names.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import pickle
import random as python_random
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any

import numpy as np

from megengine import random
from megengine.core.errors import ArgumentError, MegEngineError

Make = Callable[[list[Any]], list[Any]]  # indices -> [batch], or [] behind the end of a stream
Request = tuple[int, list[Any]]  # number of the batch, indices

_MEMORY_FILES = hasattr(os, "memfd_create")
# Without memory files a large batch fills the pipe, and so could a large request: one at a time cannot lock up.
_AHEAD = 2 if _MEMORY_FILES else 1
_SMALL = 1 << 15  # bytes; what is larger goes through a memory file
_ALIGNMENT = 64  # bytes, a line of the cache
_PATIENCE = 1.0  # seconds for an idle worker to end


class WorkerError(MegEngineError, RuntimeError):
    """A worker of a DataLoader failed, ended, or took longer than the timeout. The cause is the worker's own error."""


@dataclass(frozen=True, slots=True)
class Crew:
    """How many workers, the seconds that one may take for a batch (0: any), and the number of this pass."""

    workers: int
    timeout: float
    turn: int


def batches(make: Callable[[], Make], indices: Iterator[list[Any]], crew: Crew) -> Iterator[Any]:
    """The batches of `indices`, in their order; batch i is made by worker i % workers, two batches ahead.

    `make` is called once in each worker. A worker whose stream has ended gets no further requests. Random numbers in a
    worker depend on the state of `megengine.random`, the number of the pass and that of the batch only: not on the
    number of workers.
    """
    if multiprocessing.current_process().daemon:
        raise ArgumentError(
            "DataLoader: a worker process cannot have workers of its own; take num_workers=0 inside of a data set"
        )
    requests = enumerate(indices)
    task = partial(_serve, make, (*_entropy(), crew.turn))
    owner, idle = os.getpid(), False
    team: list[_Worker] = []
    try:
        for i in range(crew.workers):
            team.append(_Worker(f"worker {i} of {crew.workers}", task, [w.connection for w in team]))
        turn = deque(team)
        for worker in team * _AHEAD:
            worker.ask(next(requests, None))
        while turn:
            worker = turn.popleft()
            if not worker.asked:
                continue
            batch = worker.receive(crew.timeout)
            if batch:
                worker.ask(next(requests, None))
                turn.append(worker)
                yield batch[0]
        idle = True
    finally:
        if os.getpid() == owner:  # a fork of this process has no part in them
            for worker in team:
                worker.close(at_once=not idle)


def _entropy() -> tuple[int, ...]:
    """The state of the process-wide generator as numbers. Nothing is drawn: samplers give the same order as without."""
    state = random.generator().bit_generator.state["state"]
    return tuple(int(n) for part in state.values() for n in np.atleast_1d(part).tolist())


class _Worker:
    """The parent's side of a worker."""

    def __init__(self, name: str, task: Callable[..., None], others: Sequence[Connection]) -> None:
        """Start the process. Raises WorkerError where the data set cannot be sent to it."""
        self.name, self.asked = name, deque[Request]()
        method = multiprocessing.get_start_method(allow_none=True)
        context: Any = multiprocessing.get_context(method or ("fork" if sys.platform.startswith("linux") else "spawn"))
        self.connection, theirs = context.Pipe()
        # A fork holds the parent's ends of all pipes: not closed, they would hide the end of the parent.
        inherited = [*others, self.connection] if context.get_start_method() == "fork" else []
        self.process = context.Process(target=task, args=(theirs, inherited), daemon=True, name=f"DataLoader {name}")
        try:
            with warnings.catch_warnings():  # of threads while forking: kernels/forks.py makes it safe
                warnings.filterwarnings("ignore", ".*multi-threaded.*fork", DeprecationWarning)
                self.process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self.connection.close()
            raise WorkerError(
                f"DataLoader: data set, transform or collator cannot be sent to a worker: {error}; define classes and "
                "functions at the top of a module, or take num_workers=0 or multiprocessing's start method 'fork'"
            ) from error
        finally:
            theirs.close()  # else the end of the worker would not close the pipe

    def ask(self, request: Request | None) -> None:
        """Ask for a batch; nothing for None. A worker that has ended is noticed where its answer is awaited."""
        if request is not None:
            self.asked.append(request)
            with suppress(OSError):
                self.connection.send(request)

    def receive(self, timeout: float) -> Any:
        """The oldest batch asked for. Raises WorkerError."""
        number, indices = self.asked.popleft()
        task = f"DataLoader: {self.name} (process {self.process.pid}), batch {number} (items {_short(indices)})"
        if not self._answers(timeout):
            raise WorkerError(
                f"{task}: no answer in {timeout:g} s, the timeout; raise it, or take timeout=0 to wait for ever"
            )
        try:
            failed, value = _receive(self.connection)
        except (EOFError, OSError) as error:
            raise WorkerError(f"{task}: {self._end()}") from error
        if failed:
            error, text = value
            raise WorkerError(f"{task}: error in the worker\n\n{text}") from error
        return value

    def _answers(self, timeout: float) -> bool:
        end = time.monotonic() + timeout if timeout else None
        ready = wait([self.connection, self.process.sentinel], None if end is None else max(0, end - time.monotonic()))
        return bool(ready)  # of a worker that has ended the pipe still holds what it sent

    def _end(self) -> str:
        self.process.join(_PATIENCE)
        code = self.process.exitcode
        if code is not None and code < 0:
            name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
            return f"the process was ended by {name}, perhaps for want of memory; take fewer workers or smaller batches"
        return f"the process ended with exit code {code}; what it printed, or num_workers=0, shows why"

    def close(self, *, at_once: bool) -> None:
        """End the process: an idle one by the end of its pipe, one at work by a signal."""
        self.connection.close()
        if not at_once:
            self.process.join(_PATIENCE)
        for end in (self.process.terminate, self.process.kill):
            if self.process.is_alive():
                end()
                self.process.join(_PATIENCE)


def _short(indices: Sequence[Any]) -> str:
    return str(list(indices)) if len(indices) <= 8 else f"{list(indices[:8])} and {len(indices) - 8} more"


def _serve(
    make: Callable[[], Make], entropy: tuple[int, ...], connection: Connection, inherited: Sequence[Connection]
) -> None:
    """A worker: answers requests until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one ends the others
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # without the handlers of the program
    for other in inherited:
        other.close()
    batch_of: Make | None = None
    with suppress(EOFError, OSError):
        while True:
            number, indices = connection.recv()
            try:
                _seed(entropy, number)
                batch_of = batch_of or make()
                answer = _packed((False, batch_of(indices)))
            except Exception as error:
                answer = _packed_error(error)
            _send(connection, *answer)


def _seed(entropy: tuple[int, ...], number: int) -> None:
    own, numpy, python = np.random.SeedSequence([*entropy, number]).generate_state(3).tolist()
    random.seed(own)
    np.random.seed(numpy)
    python_random.seed(python)


def _packed(value: Any) -> tuple[bytes, list[memoryview]]:
    """Pickled, with the data of arrays beside it."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return head, [b.raw() for b in buffers]


def _packed_error(error: Exception) -> tuple[bytes, list[memoryview]]:
    """The error, where it can be pickled and read again, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
        return _packed((True, (error, text)))
    except Exception:  # whatever the methods of a user's class raise
        return _packed((True, (None, text)))


def _send(connection: Connection, head: bytes, buffers: list[memoryview]) -> None:
    sizes = [len(head), *(b.nbytes for b in buffers)]
    if not _MEMORY_FILES or sum(sizes) <= _SMALL:
        connection.send((sizes, [head, *map(bytearray, buffers)]))
        return
    handle = os.memfd_create("batch")
    try:
        ends = _places(sizes)
        os.ftruncate(handle, ends[-1])
        with mmap.mmap(handle, ends[-1]) as memory:
            for at, part in zip(ends, [head, *buffers], strict=False):
                memory[at : at + len(part)] = part
        connection.send((sizes, None))
        send_handle(connection, handle, None)
    finally:
        os.close(handle)


def _receive(connection: Connection) -> Any:
    """What `_send` sent. Arrays lie in the memory file, which lives as long as they do, and can be written."""
    sizes, parts = connection.recv()
    if parts is None:
        handle, ends = recv_handle(connection), _places(sizes)
        try:
            memory = memoryview(mmap.mmap(handle, ends[-1]))
        finally:
            os.close(handle)
        parts = [memory[at : at + size] for at, size in zip(ends, sizes, strict=False)]
    return pickle.loads(parts[0], buffers=parts[1:])


def _places(sizes: list[int]) -> list[int]:
    """Where each part begins, and the whole size."""
    places = [0]
    for size in sizes:
        places.append(places[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
    return places


__all__ = ["WorkerError", "batches"]
