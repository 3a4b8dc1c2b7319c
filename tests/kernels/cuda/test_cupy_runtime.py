"""The runtime of a GPU with a stand-in for CuPy: counted memory, functions, errors that say what is missing."""

import contextlib
import ctypes
import os
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

from megengine import tensor
from megengine.core.errors import DeviceError, OptionError
from megengine.kernels import _core, cuda
from megengine.kernels.cuda import cupy_runtime, settings
from megengine.kernels.cuda import runtime as runtimes
from megengine.kernels.cuda.runtime import runtime_of
from megengine.kernels.cuda.sources import program


class OutOfMemoryError(Exception):
    pass


class CudaError(RuntimeError):
    status = 0


def forget():
    cupy_runtime.unavailable_reason.cache_clear()
    cupy_runtime._driver_reason.cache_clear()


class Stand:
    """What the runtime uses of CuPy, with 1,000 bytes of memory."""

    def __init__(self, capability="90", devices=1):
        self.granted, self.loaded, self.left = [], [], 1000
        stream = SimpleNamespace(ptr=7, synchronize=lambda: None)
        runtime = SimpleNamespace(
            CUDARuntimeError=CudaError, getDeviceCount=lambda: devices, memGetInfo=lambda: (self.left, 1000),
            memcpyAsync=lambda *_: None, memsetAsync=lambda *_: None, setDevice=lambda _: None, free=lambda _: None,
        )  # fmt: skip
        driver = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8, funcSetAttribute=lambda *a: self.granted.append(a)
        )
        self.cuda = SimpleNamespace(
            runtime=runtime, driver=driver, alloc=self.alloc, get_current_stream=lambda: stream,
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=lambda _: SimpleNamespace(compute_capability=capability),
            function=SimpleNamespace(Module=self.module), alloc_pinned_memory=bytearray, Event=self.event,
        )  # fmt: skip
        self.met = []  # numbers of events that were waited for
        self.events = 0

    def alloc(self, size):
        if size > self.left:
            raise OutOfMemoryError
        return SimpleNamespace(ptr=4096)

    def event(self, disable_timing):
        number, self.events = self.events, self.events + 1
        return SimpleNamespace(record=lambda stream: None, synchronize=lambda: self.met.append(number))

    def module(self):
        return SimpleNamespace(load=self.loaded.append, get_function=lambda name: SimpleNamespace(ptr=len(name)))

    def get_default_memory_pool(self):
        return SimpleNamespace(total_bytes=lambda: 512)


@pytest.fixture
def made(monkeypatch):
    """Makes a runtime on a stand-in; launches are kept."""
    launches = []

    def launcher(_):
        return lambda *arguments: launches.append(arguments) or 0

    def make(name="gpu0", stand=Stand, **settings):
        forget()
        stand = stand(**settings)
        monkeypatch.setitem(sys.modules, "cupy", stand)
        monkeypatch.setattr(
            cupy_runtime,
            "_core",
            SimpleNamespace(CudaLauncher=launcher, CudaHeld=_core.CudaHeld, CudaMemory=_core.CudaMemory),
        )
        monkeypatch.setattr(cupy_runtime, "cubin", lambda *_: b"code")
        return cupy_runtime.CupyRuntime(name), stand, launches

    yield make
    forget()


def test_functions_are_loaded_once_and_granted_shared_memory_once(made):
    runtime, stand, launches = made()
    out = runtime.empty((4,), np.float32)
    fill = program("filling.cu", TYPE="float")
    for shared in (0, 60_000, 60_000, 50_000, 70_000):
        runtime.launch(fill, "fill", 2, (32, 2), (out, np.float32(1), np.int64(4)), shared)
    assert len(stand.loaded) == 1 and [size for _, _, size in stand.granted] == [60_000, 70_000]
    assert {launch[:3] for launch in launches} == {(4, (2,), (32, 2))} and {launch[4] for launch in launches} == {7}
    runtime.launch(fill, "fill", 0, 32, ())
    assert len(launches) == 5  # an empty grid is no launch


def test_copies_by_way_of_pinned_memory_wait_for_the_one_before_the_last(made):
    runtime, stand, _ = made()
    parts, copied = [np.full((1, 2), i, np.float32) for i in range(3)], []
    stand.cuda.runtime.memcpyAsync = lambda to, at, size, kind, stream: copied.append(
        np.frombuffer((ctypes.c_char * size).from_address(at), np.float32).tolist()
    )
    for _ in range(4):
        assert runtime.upload_parts(parts).shape == (3, 2)
    assert copied == [[0, 0, 1, 1, 2, 2]] * 4 and stand.met == [0, 1]
    assert runtime.upload_parts([parts[0][:0]] * 2).shape == (0, 2) and stand.events == 4


def test_what_is_downloaded_later_is_read_when_it_is_there(made):
    runtime, stand, _ = made()
    values = np.arange(3, dtype=np.float32)
    stand.cuda.runtime.memcpyAsync = lambda to, at, size, kind, stream: ctypes.memmove(to, values.ctypes.data, size)
    later = runtime.download_later(runtime.empty((3,), np.float32))
    assert stand.met == []
    assert later().tolist() == [0, 1, 2] and stand.met == [0]


def test_programs_are_compiled_ahead_and_loaded_later(made, monkeypatch):
    runtime, stand, _ = made()
    compiled, units = [], [program("filling.cu", TYPE=name) for name in ("float", "int", "double")]
    monkeypatch.setattr(cupy_runtime, "cubin", lambda one, architecture: compiled.append((one, architecture)) or b"")
    runtime.launch(units[0], "fill", 2, 32, ())
    runtime.prepare(units)
    assert len(stand.loaded) == 1
    assert {one for one, architecture in compiled[1:] if architecture == 90} == {*units[1:]}


def test_the_model_is_the_name_that_cuda_tells(made):
    runtime, stand, _ = made()
    stand.cuda.runtime.getDeviceProperties = lambda index: {"name": f"GPU {index}".encode()}
    assert runtime.model == "GPU 0"


def test_memory_is_counted(made):
    runtime, *_ = made()
    one, two = runtime.empty((25,), np.float32), runtime.empty((10, 2), np.float64)
    assert runtime.memory() | {"free": 0} == {
        "total": 1000, "free": 0, "used": 260, "reserved": 512, "peak_used": 260, "peak_reserved": 512,
    }  # fmt: skip
    del one
    assert runtime.memory()["used"] == 160 and runtime.memory()["peak_used"] == 260
    runtime.reset_peaks()
    assert runtime.memory()["peak_used"] == 160 and two.nbytes == 160
    view = two.reshape((20,))
    del two
    assert runtime.memory()["used"] == 160 and view.size == 20
    with pytest.raises(DeviceError, match=r"gpu0 is out of memory: asked for 0.0 MiB; tensors hold .*smaller batch"):
        runtime.empty((1000,), np.float32)


@pytest.mark.parametrize(
    ("settings", "name", "words"),
    [
        ({"devices": 0}, "gpu0", "there is no CUDA device"),
        ({"devices": 2}, "gpu2", "there are devices gpu0 to gpu1; use one of them"),
        ({"capability": "61"}, "gpu0", "compute capability 6.1; expected 7.5 or more; use cpu0"),
    ],
)
def test_what_cannot_be_used_says_why(made, settings, name, words):
    with pytest.raises(DeviceError, match=f"device '{name}' is not usable: .*{words}"):
        made(name, **settings)


def test_the_child_of_a_fork_says_that_cuda_cannot_be_used(made):
    """CUDA fails there with "initialization error" at any call: of tensors that were made before, too."""
    made()
    runtime = runtime_of("gpu0")
    x = runtime.empty((4,), np.float32)
    child = os.fork()
    if not child:
        words = []
        for use in (x.numpy, lambda: runtime.zeros((2,), np.int32), lambda: tensor(1.0, device="gpu0")):
            try:
                use()
            except DeviceError as exc:
                words.append("forked from one that had started CUDA" in str(exc) and "'spawn'" in str(exc))
        os._exit(0 if words == [True] * 3 and not cuda.available() and cuda.count() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert cuda.available() and x.numpy().shape == (4,)  # the parent goes on
    runtimes.forget("gpu0")


def test_a_launch_that_fails_names_the_kernel(made, monkeypatch):
    runtime, _, _ = made()
    runtime._launcher = lambda *_: 1
    with pytest.raises(DeviceError, match=r"filling.cu: fill was not launched on gpu0: CUDA error 1 \(grid \(1,\)"):
        runtime.launch(program("filling.cu", TYPE="int"), "fill", 1, 32, ())


def test_a_capture_that_an_error_made_invalid_is_ended():
    """CuPy raises RuntimeError when it is asked whether such a stream is capturing, and the stream stays unusable."""

    class Stream:
        ended = 0

        def is_capturing(self):
            raise RuntimeError("the stream was capturing, but an error has invalidated the capture sequence")

        def end_capture(self):
            self.ended += 1
            raise CudaError("cudaErrorStreamCaptureInvalidated")

    stream = Stream()
    cupy_runtime._end_capture(stream)
    assert stream.ended == 1
    stream.is_capturing = lambda: False
    cupy_runtime._end_capture(stream)
    assert stream.ended == 1


def test_an_old_driver_is_named(made, monkeypatch):
    def count():
        raise CudaError("cudaErrorInsufficientDriver: CUDA driver version is insufficient")

    made()
    sys.modules["cupy"].cuda.runtime.getDeviceCount = count
    forget()
    assert "older than CUDA 13 needs (580)" in cupy_runtime.unavailable_reason()
    assert cupy_runtime.count() == 0


def test_every_device_has_its_own_reason(made):
    """A GPU that is too old, or is not there, is no device that xpux stands for or that a tensor is made on."""
    with pytest.raises(DeviceError, match=r"capability 6.1"):
        made(capability="61", devices=2)
    assert cupy_runtime.count() == 2 and not cuda.available() and not cuda.available("gpu1")
    made()
    assert cuda.available() and not cuda.available("gpu1")
    with pytest.raises(DeviceError, match=r"'cuda:3' is not usable: there are devices gpu0 to gpu0; use one of them"):
        tensor(1.0, device="cuda:3")


def test_cupy_that_does_not_load_is_not_called_missing(monkeypatch, tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('libcudart.so.13: no such file')")
    monkeypatch.delitem(sys.modules, "cupy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    words = r"CuPy does not load \(libcudart.so.13: no such file\): pip install 'megengine\[cuda\]'"
    assert re.match(words, cupy_runtime.unavailable_reason())
    monkeypatch.setitem(sys.modules, "cupy", None)
    forget()
    assert cupy_runtime.unavailable_reason().startswith("CuPy is not installed")
    forget()


@pytest.mark.parametrize(("word", "on"), [("1", True), ("Yes", True), ("0", False), ("", False), ("false", False)])
def test_switches_of_the_environment(monkeypatch, word, on):
    monkeypatch.setenv("MEGENGINE_CUDA_SYNC", word)
    assert settings.switch("MEGENGINE_CUDA_SYNC") is on and EmulatedGpu().synchronous is on


def test_words_that_mean_nothing_are_named(monkeypatch, made):
    monkeypatch.setenv("MEGENGINE_CUDA_SYNC", "2")
    with pytest.raises(OptionError, match="variable MEGENGINE_CUDA_SYNC is '2'; expected 1, or 0"):
        made()
    monkeypatch.setenv("MEGENGINE_CUDA_TUNE", "-1")
    with pytest.raises(OptionError, match="variable MEGENGINE_CUDA_TUNE is '-1'; expected a number from 0"):
        settings.count("MEGENGINE_CUDA_TUNE")
    monkeypatch.setenv("MEGENGINE_CUDA_TUNE", "8")
    assert settings.count("MEGENGINE_CUDA_TUNE") == 8 and settings.count("MEGENGINE_CUDA_NONE") == 0


def test_a_device_that_waits_for_every_launch_records_none(monkeypatch, made):
    """A wait would end the recording, and the launch that fails would not be found."""
    monkeypatch.setenv("MEGENGINE_CUDA_SYNC", "1")
    assert made()[0].record(list) is None


class Streamed(Stand):
    """With what records launches; `events` are what happens, in order."""

    def __init__(self, **settings):
        super().__init__(**settings)
        self.events, self.refuses = [], False
        cuda = self.cuda
        cuda.driver.CUDADriverError = CudaError
        cuda.runtime.memcpyAsync = lambda *a: self.events.append("copy")
        cuda.MemoryPool = self.pool
        cuda.Stream = lambda non_blocking: self
        cuda.using_allocator = self.allocated_by
        self.ptr, self.next, self.left = 9, 1 << 20, 1 << 16

    def pool(self, more):
        """One that gives all arrays the same memory, as if each were freed before the next."""
        self.next += 512
        return SimpleNamespace(malloc=lambda size, at=self.next: SimpleNamespace(ptr=at), total_bytes=lambda: 256)

    @contextlib.contextmanager
    def allocated_by(self, allocate):
        before, self.cuda.alloc = self.cuda.alloc, allocate
        yield
        self.cuda.alloc = before

    def __enter__(self):
        self.events.append("enter")

    def __exit__(self, *_):
        self.events.append("leave")

    def begin_capture(self):
        self.events.append("begin")

    def is_capturing(self):
        return self.events[-1] != "end"

    def end_capture(self):
        self.events.append("end")
        if self.refuses:
            raise CudaError("operation not permitted")
        return SimpleNamespace(launch=lambda: self.events.append("launch"))


@pytest.mark.parametrize("ready", [False, True])
def test_launches_are_recorded(made, ready):
    """Tables are copied behind the recording; memory from outside is kept, and that of the recording is its pool's."""
    runtime, stand, launches = made(stand=Streamed)
    outside, runs, asked = runtime.empty((4,), np.float32), [], []
    fill = program("filling.cu", TYPE="float")
    runtime.__dict__["libraries"] = SimpleNamespace(meet_stream=lambda: asked.append(list(stand.events)))
    source, places = runtime.empty((4,), np.float32), []

    def work():
        runs.append(len(launches))
        out, table = runtime.duplicate(source), runtime.table(np.arange(3))
        places.append((out.address, table.address))
        runtime.later(np.zeros(2), again=lambda: np.ones(2), holds=lambda: len(runs) < 9)
        runtime.launch(fill, "fill", 2, 32, (outside, table, np.float32(1), np.int64(4)))
        return [out]

    recording = runtime.record(work, ready=ready)
    assert len(runs) == 2 - ready and asked == [["enter"]] * ready
    copies = ["copy", "copy"] * (not ready)
    assert stand.events == ["enter", *copies, "begin", "copy", "end", "leave", "copy", "copy"]
    assert places[-1][0] != places[-1][1]  # the launches before would write over the table
    assert recording.named == {id(outside.owner), id(source.owner)} and recording.nbytes == 256 and recording.holds()
    recording.replay()
    recording.refresh()
    assert stand.events[-2:] == ["launch", "copy"]
    runs += [0] * 9
    assert not recording.holds()


@pytest.mark.parametrize("what", ["upload", "numpy", "driver"])
def test_a_recording_that_fails_is_undone(made, what):
    runtime, stand, _ = made(stand=Streamed)
    stand.refuses, undone = what == "driver", []
    x = runtime.empty((4,), np.float32)

    def work():
        for number in range(2):
            runtime.later(np.zeros(2), undo=lambda number=number: undone.append(number))
        if what == "upload":
            runtime.upload(np.zeros(3))
        if what == "numpy":
            x.numpy()
        return []

    with pytest.raises(DeviceError, match="cannot be recorded"):
        runtime.record(work, ready=True)
    assert undone == [1, 0] and stand.events[-1] == "leave" and runtime.later(np.zeros(2)) is None
    runtime.upload(np.zeros(3))
    with runtime.watched() as found:
        x.numpy()
        runtime.upload(np.zeros(3))
        runtime.synchronize()
    assert found == ["a value is read", "a copy from main memory", "a wait"]
    runtime.synchronize()
    assert len(found) == 3


@pytest.mark.parametrize("recording", [False, True])
def test_a_pool_keeps_what_recorded_launches_write(made, recording):
    """CuPy's pool gives its free blocks back where memory ends and an allocation raises CUDA's error."""
    runtime, stand, _ = made(stand=Streamed)
    asked, released = [], []

    def memory(size):
        asked.append(size)
        error = CudaError("out of memory")
        error.status = 2
        raise error

    stand.cuda.Memory, stand.cuda.MemoryPointer = memory, lambda *a: a
    stand.get_default_memory_pool = lambda: SimpleNamespace(
        total_bytes=lambda: 512, free_all_blocks=lambda: released.append(1)
    )
    runtime._kept = {} if recording else None
    with pytest.raises(DeviceError if recording else CudaError, match="out of memory"):
        runtime._more(64)
    assert asked == [64] * (3 - recording) and released == [1]
    stand.cuda.Memory = lambda size: ("memory", size)
    assert runtime._more(64) == (("memory", 64), 0)


@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("where", ["numpy", "wait", "copy", "clear", "empty", "launch", "replay"])
def test_an_error_of_a_launch_says_what_to_do(made, where, replayed):
    """CUDA tells it at any later call: after a replay its name is told, too."""
    runtime, stand, _ = made(stand=Streamed)
    x = runtime.empty((4,), np.float32)
    recording = runtime.record(lambda: [runtime.duplicate(x)], ready=True)

    def fails(*_):
        raise CudaError("cudaErrorIllegalAddress: an illegal memory access")

    if replayed:
        recording.replay()
    recording._graph.launch = stand.cuda.runtime.memcpyAsync = stand.cuda.runtime.memsetAsync = fails
    stand.cuda.get_current_stream().synchronize = fails
    runtime._launcher = lambda *_: 700
    fill = program("filling.cu", TYPE="float")
    y = runtime.empty((4,), np.float32)
    stand.cuda.alloc = fails
    calls = {
        "numpy": x.numpy, "wait": runtime.wait, "copy": lambda: runtime.copy_within(y, x),
        "clear": lambda: runtime.clear(x), "replay": recording.replay, "empty": lambda: runtime.empty((4,), np.float32),
        "launch": lambda: runtime.launch(fill, "fill", 2, 32, (x, np.float32(1), np.int64(4))),
    }  # fmt: skip
    words = r"(IllegalAddress|fill .*CUDA error 700).*MEGENGINE_CUDA_SYNC=1.*start the process anew"
    with pytest.raises(DeviceError, match=words) as info:
        calls[where]()
    assert ("jit.trace(replay=True)" in str(info.value)) == (replayed or where == "replay")
    assert ("replay=False" in str(info.value)) == (replayed or where == "replay")
    assert "recorded" not in str(info.value)  # callers take that for a call that no recording takes
