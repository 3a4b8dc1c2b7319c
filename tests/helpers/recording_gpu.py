"""An emulated GPU that records launches and replays them, as CUDA graphs do.

It is as strict as one. What a recording frees goes to what asks next, so two values of a replay may have one place. A
recording knows addresses alone: what it does not keep is gone when it is replayed.
"""

import bisect
import math
import weakref

import numpy as np
from emulated_gpu import EmulatedGpu, LaunchError, Room

from megengine.core.errors import DeviceError
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Recording


class _Part:
    """The memory of an array of a recording, which goes back to its pool."""

    def __init__(self, pool: "_Pool", room: Room, size: int, *, captured: bool) -> None:
        self.pool, self.room, self.address, self.captured = pool, room, room.last(size), captured

    def __del__(self) -> None:
        self.pool.free.append(self.room)


class _Pool:
    """The memory of a recording, which stays as long as it does."""

    def __init__(self) -> None:
        self.free: list[Room] = []

    def take(self, size: int, *, captured: bool) -> _Part:
        """What was freed last among the smallest that suffice, else new memory."""
        enough = [room for room in self.free if room.end - room.base >= size]
        if not enough:
            return _Part(self, Room(size), size, captured=captured)
        room = min(reversed(enough), key=lambda room: room.end - room.base)
        self.free.remove(room)
        return _Part(self, room, size, captured=captured)


def _bare(value):
    """What a graph knows of an argument: of an array its address."""
    if isinstance(value, tuple):
        return tuple(map(_bare, value))
    if isinstance(value, DeviceArray):
        return DeviceArray(value.runtime, None, value.address, value.shape, value.dtype)
    return value


def _arrays(value):
    """The arrays among arguments."""
    if isinstance(value, tuple):
        return [array for one in value for array in _arrays(one)]
    return [value] if isinstance(value, DeviceArray) and value.size else []


class Tape(Recording):
    """What was launched, with the addresses of its arrays."""

    def __init__(self, gpu, actions, outputs, refusals, kept):
        self.gpu, self.actions, self.outputs, self.refusals, self.kept = gpu, actions, outputs, refusals, kept

    def replay(self) -> None:
        self.gpu.check(self.actions)
        for action, arguments in self.actions:
            action(*arguments)
        self.gpu.watch_again(self.refusals)

    @property
    def nbytes(self) -> int:
        return 0


class RecordingGpu(EmulatedGpu):
    """As on a GPU: while launches are recorded nothing is computed, and nothing may wait or copy from main memory."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tape = self._pool = None
        self._named = {}
        self._rooms = weakref.WeakValueDictionary()  # that live, by their first addresses

    def empty(self, shape, dtype) -> DeviceArray:
        if self._pool is None:
            return self.lasting(shape, dtype)
        dtype, shape = np.dtype(dtype), tuple(map(int, shape))
        size = math.prod(shape) * dtype.itemsize
        part = self._pool.take(size, captured=self.tape is not None) if size else None
        if part:
            self._rooms[part.room.base] = part.room
        return DeviceArray(self, part, part.address if part else 0, shape, dtype)

    def lasting(self, shape, dtype) -> DeviceArray:
        array = super().empty(shape, dtype)
        if array.size:
            self._rooms[array.owner.base] = array.owner
        return array

    def check(self, actions) -> None:
        """Raise LaunchError where an action names memory that is gone."""
        bases = sorted(self._rooms)
        for action, arguments in actions:
            for array in _arrays(arguments):
                at = bisect.bisect(bases, array.address) - 1
                room = self._rooms.get(bases[at]) if at >= 0 else None
                if room is None or array.address + array.nbytes > room.end:
                    what = arguments[1] if action.__name__ == "start" else action.__name__
                    raise LaunchError(f"a recorded {what} names memory that was freed: {array}")

    def record(self, work, *, ready=False):
        with self.refusals_apart() as refusals:
            self._pool = pool = _Pool()
            try:
                if not ready:
                    work()
                    self.synchronize()
                with self._filled_later() as late:
                    self.tape, self._named = [], {}
                    actions = self.tape
                    outputs = work()
            finally:
                self.tape = self._pool = None
        for one in late:
            self.copy_in(one.array, one.values)
        made = Tape(self, actions, outputs, refusals, [pool, *self._named.values()])
        made.late, made.named = late, frozenset(self._named)
        self._named = {}
        return made

    def _do(self, action, *arguments) -> None:
        """Do it now, or record it."""
        if self.tape is None:
            action(*arguments)
        else:
            self.tape.append((action, _bare(arguments)))

    def _refuse(self) -> None:
        if self.tape is not None:
            raise DeviceError(f"{self.name}: the launches cannot be recorded: a copy, or a wait")

    def name_memory(self, arrays) -> None:
        for one in arrays if self.tape is not None else ():
            if isinstance(one, DeviceArray) and one.owner is not None and not getattr(one.owner, "captured", False):
                self._named[id(one.owner)] = one.owner

    def start(self, program, kernel, grid, block, arguments, shared) -> None:
        self.name_memory(arguments)
        self._do(super().start, program, kernel, grid, block, arguments, shared)

    def clear(self, array) -> None:
        self.name_memory((array,))
        self._do(super().clear, array)

    def copy_within(self, array, source) -> None:
        self.name_memory((array, source))
        self._do(super().copy_within, array, source)

    def copy_in(self, array, source) -> None:
        self._refuse()
        super().copy_in(array, source)

    def copy_out(self, array, target) -> None:
        self._refuse()
        super().copy_out(array, target)

    def wait(self) -> None:
        self._refuse()
