"""Batch normalisation of [N, C, ...]: by statistics of the batch, its gradient, and by given statistics.

A channel of few elements is one block that keeps them in registers; a large one is split over blocks, which leave parts
of its statistics for a second launch. [N, C] has channels side by side, so a block has a column for each.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.softmax import power_of_two
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_HALVES = (np.dtype(np.float16), np.dtype(bfloat16))
_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)
# (type of elements, type of scales and statistics)
_PAIRS = ((_F32, _F32), (_F64, _F64), *((half, other) for half in _HALVES for other in (half, _F32)))
_BLOCKS = 1056  # of a launch, that a GPU be busy
_HELD_THREADS = 512


@dataclass(frozen=True, slots=True)
class _Shape:
    """A tensor as [N, C, S]: channels, units of a plane and of a channel, and the elements of a channel."""

    n: int
    channels: int
    plane: int
    width: int  # elements of one load: of 16 bytes, four halves, or one
    units: int
    all: int
    dtype: Any

    @property
    def suffix(self) -> str:
        """The ending of a kernel's name."""
        return "" if self.width == 1 else "_wide" if self.width * self.dtype.itemsize == 16 else "_four"

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The first numbers of every kernel: channels, units of a plane, units of a channel."""
        return np.int32(self.channels), np.int32(self.units), np.int32(self.all)

    def number(self, value: float) -> Any:
        """A number of the type that is computed with."""
        return np.float64(value) if self.dtype == _F64 else np.float32(value)

    @property
    def count(self) -> Any:
        """Elements of a channel, as a number."""
        return self.number(self.n * self.plane)

    def held(self, most: tuple[int, int]) -> int:
        """Threads of a block that keeps a channel in registers, up to so many elements each; 0: it does not fit."""
        threads = max(64, power_of_two(-(-self.all * self.width // most[self.width > 1])))
        return threads if threads <= _HELD_THREADS else 0

    def split(self) -> tuple[int, int]:
        """Blocks of a channel, and the units of each."""
        splits = max(1, min(-(-_BLOCKS // self.channels), -(-self.all // 1024)))
        chunk = -(-self.all // splits)
        return -(-self.all // chunk), chunk


@functools.lru_cache(maxsize=4096)
def _shape(x: TensorSpec, aligned: bool) -> _Shape:
    n, channels = x.shape[:2]
    plane = math.prod(x.shape[2:])
    widths = (8, 4) if x.dtype.itemsize == 2 else (16 // x.dtype.itemsize,)
    width = next((w for w in widths if aligned and plane % w == 0), 1)
    units = plane // width
    return _Shape(n, channels, plane, width, units, n * units, x.dtype)


def _program(file: str, dtype: Any, parameters: Any) -> Program:
    return program(file, NUM=type_name(dtype), NUM_BYTES=np.dtype(dtype).itemsize, PAR=type_name(parameters))


@dataclass(frozen=True, slots=True)
class _Launch:
    kernel: str
    grid: int
    block: int | tuple[int, int]
    numbers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """The launches of a call: one of inputs and results, or one of `read` inputs to parts and one of all of them."""

    program: Program
    launches: tuple[_Launch, ...]
    parts: tuple[int, int] = (0, 0)
    read: int = 0
    number: np.dtype = _F32


# op -> file, the beginning of its kernels' names, the kernel that leaves parts, numbers of a part, inputs that this
# kernel reads, and the elements that a thread keeps in registers (with loads of one, or of several)
_KINDS = {
    "batch_norm_training": ("batch_norm.cu", "cuda_batch_norm", "moments", 3, 1, (16, 32)),
    "batch_norm_training_backward": ("batch_norm_backward.cu", "cuda_batch_norm_back", "sums", 2, 5, (8, 16)),
}


@functools.lru_cache(maxsize=4096)
def _trained(problem: Problem, aligned: bool) -> _Plan:
    """The launches of a batch's normalisation, or of its gradient."""
    file, name, first, width, read, most = _KINDS[problem.op]
    shape, vector = _shape(problem.inputs[0], aligned), problem.inputs[-1].dtype
    source, eps = _program(file, problem.inputs[0].dtype, vector), shape.number(problem.attrs.eps)
    backward = problem.op == "batch_norm_training_backward"
    if shape.plane == 1:
        across = 32 if shape.channels >= 2048 else 8
        numbers = (np.int32(shape.n), np.int32(shape.channels), eps)
        block = (across, 256 // across)
        return _Plan(source, (_Launch(f"{name}_columns", -(-shape.channels // across), block, numbers),))
    if threads := shape.held(most):
        numbers = (*shape.numbers, shape.count, eps)
        return _Plan(source, (_Launch(f"{name}_held{shape.suffix}", shape.channels, threads, numbers),))
    splits, chunk = shape.split()
    blocks, numbers = shape.channels * splits, (*shape.numbers, np.int32(splits), np.int32(chunk))
    ends = ((eps,), (shape.count, eps)) if backward else ((), (eps,))
    names = (f"{name}_{first}{shape.suffix}", f"{name}_joined{shape.suffix}")
    launches = tuple(_Launch(n, blocks, 256, (*numbers, *end)) for n, end in zip(names, ends, strict=True))
    return _Plan(source, launches, (blocks, width), read, _F64 if shape.dtype == _F64 else _F32)


def _training(problem: Problem, *inputs: DeviceArray) -> tuple[DeviceArray, ...]:
    """Of x, scale and bias; or of x, ct, scale, mean and var."""
    x, runtime = inputs[0], inputs[0].runtime
    results = tuple(runtime.empty(s.shape, s.dtype) for s in problem.outputs)
    if not x.size:
        return (results[0], *(runtime.zeros(r.shape, r.dtype) for r in results[1:]))
    plan = _trained(problem, all(a.address % 16 == 0 for a in inputs if len(a.shape) > 1))
    *before, last = plan.launches
    parts = ()
    for one in before:
        parts = (runtime.empty(plan.parts, plan.number),)
        arguments = (*inputs[: plan.read], *parts, *one.numbers)
        runtime.launch(plan.program, one.kernel, one.grid, one.block, arguments)
    arguments = (*inputs, *parts, *results, *last.numbers)
    runtime.launch(plan.program, last.kernel, last.grid, last.block, arguments)
    return results


@functools.lru_cache(maxsize=4096)
def _applied(problem: Problem, aligned: bool) -> _Plan:
    """The launch of a normalisation by given statistics."""
    x, shape = problem.inputs[0], _shape(problem.inputs[0], aligned)
    source, eps = _program("batch_norm.cu", x.dtype, problem.inputs[1].dtype), shape.number(problem.attrs.eps)
    if shape.plane == 1:
        numbers = (np.int64(x.size), np.int32(shape.channels), eps)
        return _Plan(source, (_Launch("cuda_batch_norm_given_columns", min(-(-x.size // 256), 1 << 16), 256, numbers),))
    splits, chunk = shape.split()
    numbers = (*shape.numbers, np.int32(splits), np.int32(chunk), eps)
    return _Plan(source, (_Launch(f"cuda_batch_norm_given{shape.suffix}", shape.channels * splits, 256, numbers),))


def _given(problem: Problem, x: DeviceArray, *vectors: DeviceArray) -> DeviceArray:
    """Of x, scale, bias, mean and var."""
    y = x.runtime.empty(x.shape, x.dtype)
    if y.size:
        plan = _applied(problem, x.address % 16 == 0)
        (one,) = plan.launches
        x.runtime.launch(plan.program, one.kernel, one.grid, one.block, (x, *vectors, y, *one.numbers))
    return y


def _running(problem: Problem, *statistics: DeviceArray) -> tuple[DeviceArray, ...]:
    """Of the running mean and variance, and of those of a batch."""
    runtime, dtype, a = statistics[0].runtime, statistics[0].dtype, problem.attrs
    next_mean, next_var = (runtime.empty(s.shape, s.dtype) for s in problem.outputs)
    number = np.float64 if dtype == _F64 else np.float32
    numbers = (np.int64(next_mean.size), *map(number, (a.momentum, 1 - a.momentum, a.correction)))
    source = _program("batch_norm.cu", dtype, dtype)
    runtime.each(source, "cuda_running_statistics", next_mean.size, (*statistics, next_mean, next_var, *numbers))
    return next_mean, next_var


def _running_usable(problem: Problem) -> str | None:
    dtypes = {s.dtype for s in problem.inputs}
    one = len(dtypes) == 1 and (*dtypes, *dtypes) in _PAIRS
    return None if one else f"{', '.join(sorted(map(str, dtypes)))}; only floats of one type"


def _usable(problem: Problem) -> str | None:
    elements = {s.dtype for s in problem.inputs if s.ndim > 1}
    vectors = {s.dtype for s in problem.inputs if s.ndim == 1}
    if len(elements) > 1 or len(vectors) > 1 or (*elements, *vectors) not in _PAIRS:
        return f"elements of {sorted(map(str, elements))}, vectors of {sorted(map(str, vectors))}"
    x = problem.inputs[0]
    return "2**31 elements of a channel or more" if x.size // max(1, x.shape[1]) >> 31 else None


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "batch_norm": (EagerKernel("cuda_batch_norm", _given, _usable),),
    "batch_norm_training": (EagerKernel("cuda_batch_norm_training", _training, _usable),),
    "batch_norm_training_backward": (EagerKernel("cuda_batch_norm_training_backward", _training, _usable),),
    "running_statistics": (EagerKernel("cuda_running_statistics", _running, _running_usable),),
}


def programs() -> Iterator[Program]:
    """Every program of the family."""
    for file, pair in itertools.product(("batch_norm.cu", "batch_norm_backward.cu"), _PAIRS):
        yield _program(file, *pair)
