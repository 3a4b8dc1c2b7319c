"""The runtime of an NVIDIA GPU through CuPy: its memory pool, its current stream, and modules of machine code."""

from __future__ import annotations

import collections
import contextlib
import functools
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from megengine.core.errors import DeviceError
from megengine.kernels import _core
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.compiler import cubin
from megengine.kernels.cuda.libraries import Libraries, of_device
from megengine.kernels.cuda.runtime import Recording, Refusals, Runtime, forget, in_use
from megengine.kernels.cuda.sources import Program

OLDEST = 75  # sm_75, Turing: the oldest that CUDA 13 compiles for
_TO_DEVICE, _TO_HOST, _WITHIN = 1, 2, 3  # kinds of copies
_NO_MEMORY = 2  # cudaErrorMemoryAllocation
_BROKEN = (700, 710, 714, 715, 716, 717, 718, 719)  # errors of kernels, after which no call succeeds
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
_STAGED = 2  # copies to the device that are under way
_PLAIN_SHARED = 48 << 10  # bytes of dynamic shared memory that need no permission


_lost: list[str] = []  # why CUDA does not run in a process that was forked


@functools.cache
def _driver_reason() -> str | None:
    """None when CUDA runs here, else what is missing and the remedy."""
    if _lost:
        return _lost[0]
    try:
        import cupy
    except ModuleNotFoundError as exc:
        if exc.name != "cupy":
            return f"CuPy does not load ({exc}): pip install 'megengine[cuda]'"
        return "CuPy is not installed: pip install 'megengine[cuda]'"
    except ImportError as exc:  # a library that it needs
        return f"CuPy does not load ({exc}): pip install 'megengine[cuda]'"
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "there is no CUDA device"
    except cupy.cuda.runtime.CUDARuntimeError as exc:
        if "InsufficientDriver" in str(exc):
            return f"the NVIDIA driver is missing or older than CUDA 13 needs (580): {exc}"
        return f"CUDA does not start: {exc}"
    return None


@functools.cache
def unavailable_reason(device: str = "gpu0") -> str | None:
    """None when CUDA kernels can run on a device, else what is missing and the remedy."""
    reason = _driver_reason()
    if reason is not None:
        return reason
    import cupy

    index, count = int(device.removeprefix("gpu")), cupy.cuda.runtime.getDeviceCount()
    if index >= count:
        return f"there are devices gpu0 to gpu{count - 1}; use one of them"
    architecture = int(cupy.cuda.Device(index).compute_capability)
    if architecture < OLDEST:
        return f"it has compute capability {architecture / 10}; expected {OLDEST / 10} or more"
    return None


def count() -> int:
    """Number of CUDA devices; 0 where CUDA does not run."""
    if _driver_reason() is not None:
        return 0
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


def _forked() -> None:
    """In the child of a fork: CUDA that was started before never works in it, and fails with numbers of errors."""
    if not _driver_reason.cache_info().currsize or _driver_reason() is not None:
        return
    _lost[:] = [
        "this process was forked from one that had started CUDA, which cannot be used here: compute on cpu0, or start "
        "processes by multiprocessing's 'spawn'"
    ]
    _driver_reason.cache_clear()
    unavailable_reason.cache_clear()
    for one in in_use():
        if isinstance(one, CupyRuntime):
            one.lose()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class CupyRuntime(Runtime):
    """The device of a number. Values lie in CuPy's memory pool; launches go to CuPy's current stream."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        reason = unavailable_reason(name)
        if reason is not None:
            raise DeviceError(f"device {name!r} is not usable: {reason}; use cpu0, the processor")
        import cupy

        self._cupy, self.index = cupy, int(name.removeprefix("gpu"))
        self.architecture = int(cupy.cuda.Device(self.index).compute_capability)
        self._functions: dict[tuple[Program, str], int] = {}  # handles
        self._granted: dict[int, int] = {}  # bytes of shared memory of functions that need permission
        self._modules: dict[Program, Any] = {}
        self._launcher = _core.CudaLauncher("libcuda.so.1")
        self._alone = cupy.cuda.runtime.getDeviceCount() == 1
        self._held = _core.CudaHeld()
        self._peak_reserved = 0
        self._replaying = False  # whether recorded launches were replayed since the device was last waited for
        self._kept: dict[int, Any] | None = None  # while launches are recorded: memory from outside that they name
        self._own: set[int] = set()  # addresses of the memory of the recording
        self._staged: collections.deque[tuple[Any, Any]] = collections.deque()  # events, and memory until they are met
        self._lasting: Callable[[int], Any] | None = None  # allocates what stands before the recorded launches

    def _select(self) -> None:
        if self._alone:
            return
        runtime = self._cupy.cuda.runtime
        if runtime.getDevice() != self.index:
            runtime.setDevice(self.index)

    def lose(self) -> None:
        """Let every use of the device raise DeviceError: the process was forked."""
        forget(self.name)
        self._select = self._refuse

    def _refuse(self) -> None:
        raise DeviceError(f"{self.name}: {_lost[0]}")

    def empty(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        dtype, shape = np.dtype(dtype), tuple(shape)
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return DeviceArray(self, None, 0, shape, dtype)
        self._select()
        try:
            pointer = self._cupy.cuda.alloc(size)
        except self._cupy.cuda.memory.OutOfMemoryError as exc:
            raise DeviceError(self._no_room(size)) from exc
        except self._cupy.cuda.runtime.CUDARuntimeError as exc:
            raise self._broken(exc) from exc
        return DeviceArray(self, _core.CudaMemory(self._held, pointer, size), pointer.ptr, shape, dtype)

    def lasting(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        if self._lasting is None:
            return self.empty(shape, dtype)
        with self._cupy.cuda.using_allocator(self._lasting):
            return self.empty(shape, dtype)

    def _no_room(self, size: int) -> str:
        have = self.memory()
        mib = {name: f"{value / 2**20:.0f} MiB" for name, value in have.items()}
        return (
            f"{self.name} is out of memory: asked for {size / 2**20:.1f} MiB; tensors hold {mib['used']}, the pool "
            f"keeps {mib['reserved']}, {mib['free']} of {mib['total']} are free; the rest belongs to other programs; "
            "use a smaller batch, delete tensors, or call mge.coalesce_free_memory()"
        )

    def copy_in(self, array: DeviceArray, source: np.ndarray) -> None:
        self._copy(array.address, source.ctypes.data, source.nbytes, _TO_DEVICE)
        self._wait()  # the source may change or be freed

    def fill(self, array: DeviceArray, source: np.ndarray) -> None:
        # pageable memory is read before the call returns
        self._copy(array.address, source.ctypes.data, source.nbytes, _TO_DEVICE)

    def copy_out(self, array: DeviceArray, target: np.ndarray) -> None:
        self._copy(target.ctypes.data, array.address, target.nbytes, _TO_HOST)
        self._wait()

    def upload_parts(self, parts: Sequence[np.ndarray]) -> DeviceArray:
        size = sum(map(len, parts))
        out = self.empty((size, *parts[0].shape[1:]), parts[0].dtype)
        if not out.size or self._recorder or self.synchronous:
            return super().upload_parts(parts)
        while len(self._staged) >= _STAGED:
            self._staged.popleft()[0].synchronize()
        memory = self._cupy.cuda.alloc_pinned_memory(out.nbytes)
        whole = np.frombuffer(memory, out.dtype, out.size).reshape(out.shape)
        np.concatenate(parts, out=whole)
        stream, met = self._cupy.cuda.get_current_stream(), self._cupy.cuda.Event(disable_timing=True)
        self._copy(out.address, whole.ctypes.data, whole.nbytes, _TO_DEVICE)
        met.record(stream)
        self._staged.append((met, memory))
        return out

    def download_later(self, array: DeviceArray) -> Callable[[], np.ndarray]:
        if not array.size or self._recorder or self.synchronous:
            return super().download_later(array)
        self._select()
        memory = self._cupy.cuda.alloc_pinned_memory(array.nbytes)
        values = np.frombuffer(memory, array.dtype, array.size).reshape(array.shape)
        stream, met = self._cupy.cuda.get_current_stream(), self._cupy.cuda.Event(disable_timing=True)
        self._copy(values.ctypes.data, array.address, array.nbytes, _TO_HOST)
        met.record(stream)

        def arrived() -> np.ndarray:
            met.synchronize()
            return values.copy()  # what is pinned is used again

        return arrived

    def copy_within(self, array: DeviceArray, source: DeviceArray) -> None:
        self.name_memory((array, source))
        self._copy(array.address, source.address, source.nbytes, _WITHIN)

    def clear(self, array: DeviceArray) -> None:
        self._select()
        self.name_memory((array,))
        stream = self._cupy.cuda.get_current_stream()
        try:
            self._cupy.cuda.runtime.memsetAsync(array.address, 0, array.nbytes, stream.ptr)
        except self._cupy.cuda.runtime.CUDARuntimeError as exc:
            raise self._broken(exc) from exc

    def _copy(self, target: int, source: int, size: int, kind: int) -> None:
        self._select()
        stream = self._cupy.cuda.get_current_stream()
        try:
            self._cupy.cuda.runtime.memcpyAsync(target, source, size, kind, stream.ptr)
        except self._cupy.cuda.runtime.CUDARuntimeError as exc:
            raise self._broken(exc) from exc

    def _wait(self) -> None:
        try:
            self._cupy.cuda.get_current_stream().synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as exc:
            raise self._broken(exc) from exc
        self._replaying = False

    def _broken(self, what: Exception | str) -> DeviceError:
        """What an error of CUDA means: that of a launch is told by a later call."""
        if self._kept is not None:  # the recording says more
            return DeviceError(f"{self.name}: {what}")
        why = f"{what}, of this call or of a launch before"
        if self._replaying:
            why += (
                "; a graph of jit.trace(replay=True) or of a plan was replayed before it: "
                "jit.trace(replay=False) makes the launches one by one"
            )
        return DeviceError(
            f"{self.name}: {why}; MEGENGINE_CUDA_SYNC=1 replays nothing and finds the launch; "
            "start the process anew: after most errors CUDA takes no other call"
        )

    def _function(self, program: Program, kernel: str) -> int:
        module = self._modules.get(program)
        if module is None:
            module = self._cupy.cuda.function.Module()
            module.load(cubin(program, self.architecture))
            self._modules[program] = module
        return module.get_function(kernel).ptr

    def _grant(self, function: int, shared: int) -> None:
        """Let a function take more shared memory than it may unasked."""
        attribute = self._cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._cupy.cuda.driver.funcSetAttribute(function, attribute, shared)
        self._granted[function] = shared

    def prepare(self, programs: Sequence[Program]) -> None:
        missing = [one for one in programs if one not in self._modules]
        with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:  # the compiler holds no lock of Python
            list(pool.map(lambda one: cubin(one, self.architecture), missing))

    @functools.cached_property
    def model(self) -> str:
        name = self._cupy.cuda.runtime.getDeviceProperties(self.index)["name"]
        return name.decode(errors="replace")

    @functools.cached_property
    def libraries(self) -> Libraries:
        self._select()
        return of_device(lambda: self._cupy.cuda.get_current_stream().ptr, self.model)

    def name_memory(self, arrays: Sequence[Any]) -> None:
        if self._kept is not None:
            for one in arrays:
                if type(one) is DeviceArray and one.owner is not None and one.owner.pointer.ptr not in self._own:
                    self._kept[id(one.owner)] = one.owner

    def start(
        self,
        program: Program,
        kernel: str,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        arguments: tuple,
        shared: int,
    ) -> None:
        self._select()
        if self._kept is not None:
            self.name_memory(arguments)
        key = (program, kernel)
        function = self._functions.get(key)
        if function is None:
            function = self._functions[key] = self._function(program, kernel)
        if shared > _PLAIN_SHARED and self._granted.get(function, 0) < shared:
            self._grant(function, shared)
        stream = self._cupy.cuda.get_current_stream().ptr
        failed = self._launcher(function, grid, block, shared, stream, arguments)
        if failed == _NO_CONTEXT:  # the first call of this thread
            self._cupy.cuda.runtime.setDevice(self.index)
            self._cupy.cuda.runtime.free(0)
            failed = self._launcher(function, grid, block, shared, stream, arguments)
        if failed:
            what = (
                f"{program.file}: {kernel} was not launched on {self.name}: CUDA error {failed} "
                f"(grid {grid}, block {block}, shared memory {shared} B)"
            )
            raise self._broken(what) if failed in _BROKEN else DeviceError(what)

    def _more(self, size: int) -> Any:
        """Memory for the pool of a recording. Where none is left, that which other tensors left is given back.

        The pool itself would give back what recorded launches still write: it may not while they are recorded.
        """
        found = self._fresh(size)
        if found is None:
            self.release()
            found = self._fresh(size)
        if found is None and self._kept is not None:
            raise DeviceError(self._no_room(size))
        return self._fresh(size, last=True) if found is None else found

    def _fresh(self, size: int, *, last: bool = False) -> Any:
        """Memory of no pool; None where there is none, or CUDA's error, at which a pool gives back its own."""
        cuda = self._cupy.cuda
        try:
            return cuda.MemoryPointer(cuda.Memory(size), 0)
        except cuda.runtime.CUDARuntimeError as exc:
            if last or exc.status != _NO_MEMORY:
                raise
        return None

    def record(self, work: Callable[[], list[DeviceArray]], *, ready: bool = False) -> Recording | None:
        if self.synchronous:  # launches are to be waited for one by one
            return None
        self._select()
        cuda = self._cupy.cuda
        stream = cuda.Stream(non_blocking=True)
        pool, apart = cuda.MemoryPool(self._more), cuda.MemoryPool(self._more)
        own: set[int] = set()
        kept: dict[int, Any] = {}

        def malloc(size: int, pool: Any = pool) -> Any:
            pointer = pool.malloc(size)
            own.add(pointer.ptr)
            return pointer

        with self.refusals_apart() as refusals:
            self.wait()  # what `work` reads is computed on another stream
            with stream, cuda.using_allocator(malloc):
                if not ready:
                    work()  # compiles kernels, copies their tables, and fills the pool
                    self.synchronize()
                elif "libraries" in self.__dict__:
                    self.libraries.meet_stream()  # they ask the driver about a new stream
                with self._filled_later() as late:
                    own.clear()  # what lives since `work` ran before is memory from outside
                    self._kept, self._own, self._lasting = kept, own, functools.partial(malloc, pool=apart)
                    stream.begin_capture()
                    try:
                        outputs = work()
                        graph = stream.end_capture()
                    except (cuda.runtime.CUDARuntimeError, cuda.driver.CUDADriverError, DeviceError) as exc:
                        raise DeviceError(f"{self.name}: the launches cannot be recorded: {exc}") from exc
                    finally:
                        self._kept = self._lasting = None
                        _end_capture(stream)
        for one in late:
            self.copy_in(one.array, one.values)
        made = _Graph(self, graph, outputs, refusals, [*kept.values(), stream], pool)
        made.late, made.named = late, frozenset(kept)
        return made

    def milliseconds(self, work: Callable[[], Any]) -> float:
        self._select()
        begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        begin.record()
        work()
        end.record()
        end.synchronize()
        return self._cupy.cuda.get_elapsed_time(begin, end)

    def wait(self) -> None:
        self._select()
        self._wait()

    def memory(self) -> dict[str, int]:
        self._select()
        pool = self._cupy.get_default_memory_pool()
        free, total = self._cupy.cuda.runtime.memGetInfo()
        reserved = pool.total_bytes()
        self._peak_reserved = max(self._peak_reserved, reserved, self._held.most)
        return {
            "total": total,
            "free": free,
            "used": self._held.now,
            "reserved": reserved,
            "peak_used": self._held.most,
            "peak_reserved": self._peak_reserved,
        }

    def reset_peaks(self) -> None:
        self._held.reset()
        self._peak_reserved = 0

    def release(self) -> None:
        self._select()
        self._cupy.get_default_memory_pool().free_all_blocks()

    def from_dlpack(self, values: Any) -> DeviceArray:
        """The memory of an object with `__dlpack__` on this device, without a copy where it is dense in C order."""
        self._select()
        array = self._cupy.ascontiguousarray(self._cupy.from_dlpack(values))
        owner = _core.CudaMemory(self._held, array.data, array.nbytes)
        return DeviceArray(self, owner, array.data.ptr, array.shape, array.dtype)

    def cupy_array(self, array: DeviceArray) -> Any:
        """A CuPy array on the same memory, for its libraries."""
        cupy = self._cupy
        if not array.size:
            return cupy.empty(array.shape, array.dtype)
        memory = cupy.cuda.UnownedMemory(array.address, array.nbytes, array, self.index)
        return cupy.ndarray(array.shape, array.dtype, cupy.cuda.MemoryPointer(memory, 0))


def _end_capture(stream: Any) -> None:
    """End a capture that an error left open; `is_capturing` raises where the error made it invalid."""
    with contextlib.suppress(RuntimeError):  # CUDA's errors are RuntimeErrors, too
        if not stream.is_capturing():
            return
    with contextlib.suppress(RuntimeError):
        stream.end_capture()


class _Graph(Recording):
    """A CUDA graph with its values in a pool. `kept` is memory from outside that its launches name: weights, tables."""

    def __init__(
        self,
        runtime: CupyRuntime,
        graph: Any,
        outputs: list[DeviceArray],
        refusals: Refusals,
        kept: list[Any],
        pool: Any,
    ) -> None:
        self._runtime, self._graph, self.outputs, self._refusals, self._kept = runtime, graph, outputs, refusals, kept
        self._pool = pool

    def replay(self) -> None:
        runtime = self._runtime
        runtime._select()
        runtime._replaying = True
        try:
            self._graph.launch()
        except runtime._cupy.cuda.runtime.CUDARuntimeError as exc:
            raise runtime._broken(exc) from exc
        runtime.watch_again(self._refusals)

    @property
    def nbytes(self) -> int:
        return self._pool.total_bytes()
