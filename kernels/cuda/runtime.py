"""Runtimes: memory and launches of one device each. `runtime_of("gpu0")` is the one that CuPy provides.

Kernels reach a device through this interface alone, so that tests run the same host code and the same sources on the
processor, by a runtime of their own (`installed`).
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.errors import DeviceError, MegEngineError
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.settings import switch
from megengine.kernels.cuda.sources import Program

Refusal = Callable[[int], Exception]


class Refusals:
    """Cells in which kernels refuse their inputs, and what each refusal raises."""

    def __init__(self, cells: DeviceArray, watched: list[tuple[Refusal, str]]) -> None:
        self.cells, self.watched = cells, watched


@dataclass(frozen=True, slots=True)
class Late:
    """An array of a recording that the host fills when launches are recorded, since nothing is copied before.

    `again` gives its values for each further replay, and does what the host does in such a call; without it they stay.
    `holds` says whether the call would launch the same still. `undo` takes back what the host did for the recording.
    """

    array: DeviceArray
    values: np.ndarray
    again: Callable[[], np.ndarray] | None = None
    holds: Callable[[], bool] | None = None
    undo: Callable[[], None] | None = None


class Recording:
    """Launches that were recorded, with all memory that they use. A replay writes the same `outputs` again."""

    outputs: list[DeviceArray]
    late: Sequence[Late] = ()
    named: frozenset[int] = frozenset()  # ids of the owners of memory from outside that the launches name

    def replay(self) -> None:
        """Launch everything again; it is asynchronous."""
        raise NotImplementedError

    def holds(self) -> bool:
        """Whether the recorded calls would launch the same still."""
        return all(one.holds is None or one.holds() for one in self.late)

    def refresh(self) -> None:
        """Do what the host does before each replay but the first."""
        for one in self.late:
            if one.again is not None:
                one.array.runtime.fill(one.array, one.again())

    @property
    def nbytes(self) -> int:
        """Memory of values between the launches."""
        raise NotImplementedError


_PACKAGE = "megengine"
_CELLS = 1024


class Runtime:
    """One device. Launches are asynchronous: what a kernel refuses is raised where the device is next waited for."""

    name: str
    architecture: int  # compute capability times ten

    def __init__(self, name: str) -> None:
        self.name = name
        self.synchronous = switch("MEGENGINE_CUDA_SYNC")  # every launch waits
        self._cells: DeviceArray | None = None
        self._watched: list[tuple[Refusal, str]] = []
        self._replayed: dict[int, Refusals] = {}
        self._lock = threading.Lock()  # of the three above
        self._recorder = 0  # the thread whose calls are recorded, or watched before they are
        self._late: list[Late] | None = None  # while launches are recorded
        self._noted: list[str] | None = None  # while a call is watched: what cannot be recorded

    # ---- what a kind of runtime provides
    def empty(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """A dense array without values. Raises DeviceError where memory does not suffice."""
        raise NotImplementedError

    def lasting(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """An array for values that stand before recorded launches: no launch had its memory earlier in the recording.

        What a recording frees goes to what asks next, which is right in the order of the launches; a value that the
        host writes before all of them would be overwritten by the first that had its place.
        """
        return self.empty(shape, dtype)

    def copy_in(self, array: DeviceArray, source: np.ndarray) -> None:
        """Write the values of a dense array of main memory."""
        raise NotImplementedError

    def copy_out(self, array: DeviceArray, target: np.ndarray) -> None:
        """Read the values into a dense array of main memory, after all launches have ended."""
        raise NotImplementedError

    def copy_within(self, array: DeviceArray, source: DeviceArray) -> None:
        """Write the bytes of another array of this device."""
        raise NotImplementedError

    def fill(self, array: DeviceArray, source: np.ndarray) -> None:
        """Write the values of a small array of main memory, for which nothing waits where that can be helped."""
        self.copy_in(array, source)

    def clear(self, array: DeviceArray) -> None:
        """Set all bits to zero."""
        raise NotImplementedError

    def start(
        self,
        program: Program,
        kernel: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple,
        shared: int,
    ) -> None:
        """Launch a kernel; arguments are DeviceArrays, None for a null pointer, and NumPy scalars."""
        raise NotImplementedError

    def name_memory(self, arrays: Sequence[Any]) -> None:
        """Note arrays that the next launch of a library reads or writes; `start` notes its own arguments."""

    def wait(self) -> None:
        """Wait for all launches to end."""
        raise NotImplementedError

    def memory(self) -> dict[str, int]:
        """Bytes of the device: total, free, and of the pool: used, reserved, peak_used, peak_reserved."""
        raise NotImplementedError

    def reset_peaks(self) -> None:
        """Let the peaks be the present values."""
        raise NotImplementedError

    def release(self) -> None:
        """Give memory that is kept for reuse back to the device."""
        raise NotImplementedError

    def record(self, work: Callable[[], list[DeviceArray]], *, ready: bool = False) -> Recording | None:
        """Record the launches of `work`; None where the device cannot record.

        `work` runs once before, for what is made at first calls, unless all is `ready`. While it is recorded nothing is
        computed. Raises DeviceError where it waits for the device, or copies from main memory.
        """
        return None

    def milliseconds(self, work: Callable[[], Any]) -> float:
        """How long the device takes for the launches of `work`."""
        self.wait()
        begin = time.perf_counter()
        work()
        self.wait()
        return (time.perf_counter() - begin) * 1e3

    def prepare(self, programs: Sequence[Program]) -> None:
        """Compile programs that are launched soon, several at once where the device has a compiler."""

    @functools.cached_property
    def model(self) -> str:
        """What kind of device it is."""
        return type(self).__name__

    @functools.cached_property
    def libraries(self) -> Any:
        """NVIDIA's (libraries.Libraries); None where there are none."""
        return None

    # ---- what follows from it
    def zeros(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """A dense array of zeros."""
        out = self.empty(shape, dtype)
        if out.size:
            self.clear(out)
        return out

    def upload(self, array: Any) -> DeviceArray:
        """A copy of an array of main memory."""
        source = np.asarray(array, order="C")
        if self._recorder:
            self.not_recorded("a copy from main memory")
        out = self.empty(source.shape, source.dtype)
        if out.size:
            self.copy_in(out, source)
        return out

    def table(self, array: np.ndarray, again: Callable[[], np.ndarray] | None = None) -> DeviceArray:
        """A copy of a small new array, for which nothing waits where that can be helped.

        In a recording it is `Late`, and `again` gives the array of each further replay.
        """
        late = self.later(array, again=again)
        if late is not None:
            return late
        out = self.empty(array.shape, array.dtype)
        if out.size:
            self.fill(out, array)
        return out

    def later(self, values: np.ndarray, **how: Any) -> DeviceArray | None:
        """An array that is filled when the launches are recorded (`Late`); None where this thread records none."""
        if self._late is None or self._recorder != threading.get_ident():
            return None
        out = self.lasting(values.shape, values.dtype)
        if out.size:
            self._late.append(Late(out, values.copy(), **how))
        return out

    def not_recorded(self, why: str) -> None:
        """Say what a recording does not repeat. Raises DeviceError while this thread records."""
        if self._recorder != threading.get_ident():
            return
        if self._late is not None:
            raise DeviceError(f"{self.name}: the launches cannot be recorded: {why}")
        if self._noted is not None:
            self._noted.append(why)

    @contextmanager
    def watched(self) -> Iterator[list[str]]:
        """What launches of the body a recording would not repeat, by this thread."""
        self._recorder, self._noted = threading.get_ident(), []
        try:
            yield self._noted
        finally:
            self._recorder, self._noted = 0, None

    @contextmanager
    def _filled_later(self) -> Iterator[list[Late]]:
        """Let arrays of the body be `Late`. Where it raises, what the host did is undone."""
        self._recorder, self._late = threading.get_ident(), []
        made = self._late
        try:
            yield made
        except BaseException:
            for one in reversed(made):
                if one.undo is not None:
                    one.undo()
            raise
        finally:
            self._recorder, self._late = 0, None

    def duplicate(self, array: DeviceArray) -> DeviceArray:
        """A copy in memory of its own."""
        out = self.empty(array.shape, array.dtype)
        if out.size:
            self.copy_within(out, array)
        return out

    def download(self, array: DeviceArray) -> np.ndarray:
        """A copy in main memory, after all launches. Raises what a kernel refused."""
        if self._recorder:
            self.not_recorded("a value is read")
        out = np.empty(array.shape, array.dtype)
        if out.size:
            self.copy_out(array, out)
        if self._watched or self._replayed:
            self._raise_refused()
        return out

    def upload_parts(self, parts: Sequence[np.ndarray]) -> DeviceArray:
        """Arrays of one dtype behind each other along axis 0. Nothing waits where that can be helped."""
        return self.upload(parts[0] if len(parts) == 1 else np.concatenate(parts))

    def download_later(self, array: DeviceArray) -> Callable[[], np.ndarray]:
        """Begin to copy to main memory: the result waits for the copy, not for later launches, and gives the values.

        What a kernel refused is raised by `synchronize`.
        """
        values = self.download(array)
        return lambda: values

    def synchronize(self) -> None:
        """Wait for all launches. Raises what a kernel refused."""
        if self._recorder:
            self.not_recorded("a wait")
        self.wait()
        if self._watched or self._replayed:
            self._raise_refused()

    def launch(
        self,
        program: Program,
        kernel: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        arguments: Sequence[Any],
        shared: int = 0,
    ) -> None:
        """Launch a kernel of a program. A grid or block is a number of x, or (x, y, z); an empty grid is no launch."""
        blocks = grid if isinstance(grid, tuple) else (grid,)
        if 0 not in blocks:
            threads = block if isinstance(block, tuple) else (block,)
            self.start(program, kernel, blocks, threads, tuple(arguments), shared)
        if self.synchronous:
            self.synchronize()

    def each(self, program: Program, kernel: str, count: int, arguments: Sequence[Any], block: int = 256) -> None:
        """Launch a kernel of FOR_EACH over `count` elements."""
        self.launch(program, kernel, min(-(-count // block), 1 << 16), block, arguments)

    def refusal(self, error: Refusal) -> DeviceArray:
        """A cell, an int that holds 0, in which a kernel leaves 1 + a number to refuse its input.

        `error(number)` makes the exception, which is raised where the device is next waited for; a note tells the line
        of the user's program that made the call.
        """
        line = _caller()
        while True:
            with self._lock:  # two threads have two cells
                if self._cells is None:
                    self._cells = self.zeros((_CELLS,), np.int32)
                at, cells = len(self._watched), self._cells
                if at < _CELLS:
                    self._watched.append((error, line))
                    return DeviceArray(self, cells.owner, cells.address + 4 * at, (1,), np.dtype(np.int32))
            self.wait()  # once in a thousand calls: none that is watched does it each time
            self._raise_refused()

    @contextmanager
    def refusals_apart(self) -> Iterator[Refusals]:
        """Let the cells of the body be of an array of its own, which stays when the body ends."""
        before = self._cells, self._watched, self._replayed
        self._cells, self._watched, self._replayed = self.zeros((_CELLS,), np.int32), [], {}
        own = Refusals(self._cells, self._watched)
        try:
            yield own
        finally:
            own.watched = self._watched
            self._cells, self._watched, self._replayed = before

    def watch_again(self, refusals: Refusals) -> None:
        """Look at cells again where the device is next waited for: a recording that writes them was replayed."""
        if refusals.watched:
            self._replayed[id(refusals)] = refusals

    def _raise_refused(self) -> None:
        with self._lock:
            found = [*self._replayed.values()]
            if self._cells is not None:
                found.insert(0, Refusals(self._cells, self._watched))
            self._watched, self._replayed = [], {}
        refused = [self._refused(one.cells, one.watched) for one in found]  # all, so that no cell keeps its mark
        for error in filter(None, refused):
            raise error

    def _refused(self, array: DeviceArray, watched: list[tuple[Refusal, str]]) -> Exception | None:
        """The error of the first cell with a mark, of which none is left; None where there is none."""
        cells = np.empty(_CELLS, np.int32)
        self.copy_out(array, cells)
        if not cells.any():
            return None
        self.clear(array)
        first = int(np.flatnonzero(cells)[0])
        if first >= len(watched):  # launched by another thread after this one had looked at the cells before
            return DeviceError(f"{self.name}: a call of another thread was refused its inputs (MEGENGINE_CUDA_SYNC=1)")
        error, line = watched[first]
        made = error(int(cells[first]) - 1)
        if isinstance(made, MegEngineError):
            made.add_note(f"the call was made at {line}, and computed asynchronously (MEGENGINE_CUDA_SYNC=1: at once)")
        return made


def _caller() -> str:
    """The innermost line outside this package: where the user's program called it."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module != _PACKAGE and not module.startswith(f"{_PACKAGE}."):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


_runtimes: dict[str, Runtime] = {}
_makers: list[Callable[[str], Runtime]] = []


def provide(maker: Callable[[str], Runtime]) -> None:
    """Let `maker(name)` make the runtime of a device at its first use."""
    _makers[:] = [maker]


def runtime_of(device: str) -> Runtime:
    """The runtime of a device, "gpu0". Raises DeviceError that says what is missing."""
    found = _runtimes.get(device)
    if found is None:
        if not _makers:
            raise DeviceError(f"device {device!r} has no runtime")
        found = _runtimes[device] = _makers[0](device)
    return found


@contextmanager
def installed(runtime: Runtime) -> Iterator[Runtime]:
    """Let a runtime stand for the device of its name while the body runs: for tests."""
    before = _runtimes.get(runtime.name)
    _runtimes[runtime.name] = runtime
    try:
        yield runtime
    finally:
        if before is None:
            _runtimes.pop(runtime.name, None)
        else:
            _runtimes[runtime.name] = before


def forget(device: str) -> None:
    """Let the runtime of a device be made anew at its next use."""
    _runtimes.pop(device, None)


def stands_in(device: str) -> bool:
    """Whether a runtime is installed for the device."""
    return device in _runtimes


def stand_ins() -> int:
    """Number of devices with a runtime."""
    return len(_runtimes)


def in_use() -> list[Runtime]:
    """The runtimes of devices that were used."""
    return list(_runtimes.values())
