"""A GPU on paper: host code runs for arrays of any size, whose memory nobody has; limits of launches are checked."""

import math

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import DeviceError, MegEngineError
from megengine.core.spec import TensorSpec
from megengine.dispatch import infer
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Runtime, installed
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

MEMORY = 150 << 30  # bytes, a little more than the largest GPUs have
_LAUNCHES = 64  # of a call, after which it is known what kind of launches it makes


class EnoughError(Exception):
    """The call waits for numbers that nobody computed, or goes on like this."""


class PaperGpu(Runtime):
    """A device named gpu0 that computes nothing. `launched` are files, kernels and grids."""

    def __init__(self, architecture: int = 90) -> None:
        super().__init__("gpu0")
        self.architecture = architecture
        self.launched: list[tuple[str, str, tuple[int, ...]]] = []
        self._next, self._held = 1 << 40, 0

    def empty(self, shape, dtype) -> DeviceArray:
        dtype, shape = np.dtype(dtype), tuple(map(int, shape))
        size = math.prod(shape) * dtype.itemsize
        self._held += size
        if self._held > MEMORY:
            raise DeviceError(f"gpu0 is out of memory: asked for {size} bytes")
        address, self._next = self._next, self._next + -(-size // 512) * 512
        return DeviceArray(self, None, address, shape, dtype)

    def copy_in(self, array, source) -> None:
        """Nothing."""

    def copy_within(self, array, source) -> None:
        """Nothing."""

    def clear(self, array) -> None:
        """Nothing."""

    def wait(self) -> None:
        """Nothing."""

    def copy_out(self, array, target) -> None:
        raise EnoughError

    def start(self, program, kernel, grid, block, arguments, shared) -> None:
        columns, rows, layers = (*grid, 1, 1)[:3]
        name = f"{program.file} {kernel}: grid {grid}, block {block}, {shared} bytes of shared memory"
        assert columns < 1 << 31 and max(rows, layers) <= 65535, name
        assert math.prod(block) <= 1024 and shared <= 227 << 10, name
        self.launched.append((program.file, kernel, grid))
        if len(self.launched) > _LAUNCHES:
            raise EnoughError


def launched(op: str, specs: list[TensorSpec], attrs) -> list[list[tuple[str, str, tuple[int, ...]]]]:
    """What each usable CUDA kernel launches for inputs of some specs; nothing where the op refuses them.

    Kernels whose memory no GPU has are left out.
    """
    try:
        out = infer(op, specs, dict(attrs))
    except (MegEngineError, MemoryError):
        return []
    outs = (out,) if isinstance(out, TensorSpec) else tuple(out)
    if any(not isinstance(n, int) for spec in outs for n in spec.shape):
        return []
    problem, found = Problem(op, specs, outs, dict(attrs)), []
    for kernel in family(op).candidates(problem):
        if not kernel.name.startswith("cuda_"):
            continue
        with installed(PaperGpu()) as gpu:
            try:
                kernel.run(problem, *[gpu.empty(s.shape, storage_of(s.dtype)) for s in specs])
            except EnoughError:
                pass
            except DeviceError as exc:
                assert "out of memory" in str(exc), exc
                continue
        found.append(gpu.launched)
    return found


def grown(specs: list[TensorSpec], length: int, to: int) -> list[TensorSpec]:
    """The specs with one length, wherever it occurs, in place of another."""
    return [TensorSpec(tuple(to if n == length else n for n in s.shape), s.dtype, s.device) for s in specs]
