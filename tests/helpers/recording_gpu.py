"""An emulated GPU that records launches and replays them, as CUDA graphs do."""

import weakref
from functools import partial

from emulated_gpu import EmulatedGpu

from megengine.core.errors import DeviceError
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Recording


class _Lease:
    """Memory of a recording that a later array of the recording gets when nothing holds it, as from a pool."""

    def __init__(self, room, free):
        self.room = room
        weakref.finalize(self, free.append, room)


def _recorded(value):
    """An argument as a launch keeps it: an address, which does not keep a pool from giving the memory again."""
    if isinstance(value, DeviceArray) and isinstance(value.owner, _Lease):
        return DeviceArray(value.runtime, value.owner.room, value.address, value.shape, value.dtype)
    return tuple(map(_recorded, value)) if isinstance(value, tuple) else value


class Tape(Recording):
    """What was launched, with its arrays: the same memory at every replay."""

    def __init__(self, gpu, actions, outputs, refusals):
        self.gpu, self.actions, self.outputs, self.refusals = gpu, actions, outputs, refusals

    def replay(self) -> None:
        for action in self.actions:
            action()
        self.gpu.watch_again(self.refusals)

    @property
    def nbytes(self) -> int:
        return 0


class RecordingGpu(EmulatedGpu):
    """As on a GPU: while launches are recorded nothing is computed, and nothing may wait or copy from main memory."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tape = None
        self._named, self._free = {}, {}

    def empty(self, shape, dtype) -> DeviceArray:
        """Memory that an earlier array of the recording had comes first: all launches write it again, in order."""
        if self.tape is None:
            return super().empty(shape, dtype)
        made = self.apart(shape, dtype)
        if made.owner is not None:
            free = self._free.setdefault(-(-made.nbytes // 512), [])
            lease = _Lease(free.pop() if free else made.owner, free)
            made = DeviceArray(self, lease, lease.room.ends_at(made.nbytes), made.shape, made.dtype)
        return made

    def apart(self, shape, dtype) -> DeviceArray:
        return super().empty(shape, dtype)

    def record(self, work, *, ready=False):
        with self.refusals_apart() as refusals:
            if not ready:
                work()
                self.synchronize()
            with self._filled_later() as late:
                self.tape, self._named, self._free = [], {}, {}
                actions = self.tape
                try:
                    outputs = work()
                finally:
                    self.tape = None
        for one in late:
            self.copy_in(one.array, one.values)
        made = Tape(self, actions, outputs, refusals)
        made.late, made.named, made.kept = late, frozenset(self._named), self._named
        return made

    def _do(self, action, *arguments) -> None:
        """Do it now, or record it."""
        if self.tape is None:
            action(*arguments)
        else:
            self.tape.append(partial(action, *map(_recorded, arguments)))

    def _refuse(self) -> None:
        if self.tape is not None:
            raise DeviceError(f"{self.name}: the launches cannot be recorded: a copy, or a wait")

    def name_memory(self, arrays) -> None:
        for one in arrays if self.tape is not None else ():
            if isinstance(one, DeviceArray) and one.owner is not None and not isinstance(one.owner, _Lease):
                self._named[id(one.owner)] = one.owner

    def start(self, program, kernel, grid, block, arguments, shared) -> None:
        self.name_memory(arguments)
        self._do(super().start, program, kernel, grid, block, arguments, shared)

    def clear(self, array) -> None:
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
