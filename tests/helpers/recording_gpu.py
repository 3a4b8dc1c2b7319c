"""An emulated GPU that records launches and replays them, as CUDA graphs do."""

from functools import partial

from emulated_gpu import EmulatedGpu

from megengine.core.errors import DeviceError
from megengine.kernels.cuda.runtime import Recording


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
    """As on a GPU, nothing may wait for the device or copy from main memory while launches are recorded."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tape = None

    def record(self, work):
        with self.refusals_apart() as refusals:
            work()
            self.synchronize()
            self.tape = actions = []
            try:
                outputs = work()
            finally:
                self.tape = None
        return Tape(self, actions, outputs, refusals)

    def _note(self, action) -> None:
        if self.tape is not None:
            self.tape.append(action)

    def _refuse(self) -> None:
        if self.tape is not None:
            raise DeviceError(f"{self.name}: the launches cannot be recorded: a copy, or a wait")

    def start(self, *args) -> None:
        self._note(partial(super().start, *args))
        super().start(*args)

    def clear(self, array) -> None:
        self._note(partial(super().clear, array))
        super().clear(array)

    def copy_within(self, array, source) -> None:
        self._note(partial(super().copy_within, array, source))
        super().copy_within(array, source)

    def copy_in(self, array, source) -> None:
        self._refuse()
        super().copy_in(array, source)

    def copy_out(self, array, target) -> None:
        self._refuse()
        super().copy_out(array, target)

    def wait(self) -> None:
        self._refuse()
