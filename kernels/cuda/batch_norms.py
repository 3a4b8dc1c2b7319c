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
    wide: bool
    units: int
    all: int
    size: np.dtype

    @property
    def suffix(self) -> str:
        """The ending of a kernel's name."""
        return "_wide" if self.wide else ""

    @property
    def numbers(self) -> tuple[Any, ...]:
        """The first numbers of every kernel: channels, units of a plane, units of a channel."""
        return np.int32(self.channels), np.int32(self.units), np.int32(self.all)

    def number(self, value: float) -> Any:
        """A number of the type that is computed with."""
        return np.float64(value) if self.size == _F64 else np.float32(value)

    @property
    def count(self) -> Any:
        """Elements of a channel, as a number."""
        return self.number(self.n * self.plane)

    def held(self, most: tuple[int, int]) -> int:
        """Threads of a block that keeps a channel in registers, up to so many elements each; 0: it does not fit."""
        threads = max(64, power_of_two(-(-self.all * self._width // most[self.wide])))
        return threads if threads <= _HELD_THREADS else 0

    @property
    def _width(self) -> int:
        return 16 // self.size.itemsize if self.wide else 1

    def split(self) -> tuple[int, int]:
        """Blocks of a channel, and the units of each."""
        splits = max(1, min(-(-_BLOCKS // self.channels), -(-self.all // 1024)))
        chunk = -(-self.all // splits)
        return -(-self.all // chunk), chunk


@functools.lru_cache(maxsize=4096)
def _shape(x: TensorSpec, aligned: bool) -> _Shape:
    n, channels = x.shape[:2]
    plane = math.prod(x.shape[2:])
    width = 16 // x.dtype.itemsize
    wide = aligned and plane % width == 0
    units = plane // width if wide else plane
    return _Shape(n, channels, plane, wide, units, n * units, x.dtype)


def _program(file: str, dtype: np.dtype, parameters: np.dtype) -> Program:
    return program(file, NUM=type_name(dtype), PAR=type_name(parameters))


def _aligned(*arrays: DeviceArray) -> bool:
    return all(a.address % 16 == 0 for a in arrays)


def _column_blocks(shape: _Shape) -> tuple[int, tuple[int, int]]:
    across = 32 if shape.channels >= 2048 else 8
    return -(-shape.channels // across), (across, 256 // across)


def _training(problem: Problem, x: DeviceArray, scale: DeviceArray, bias: DeviceArray) -> tuple[DeviceArray, ...]:
    runtime, shape, dtype = x.runtime, _shape(problem.inputs[0], _aligned(x)), problem.inputs[1].dtype
    y, mean, var = (runtime.empty(s.shape, s.dtype) for s in problem.outputs)
    source, eps = _program("batch_norm.cu", x.dtype, dtype), shape.number(problem.attrs.eps)
    if shape.plane == 1:
        grid, block = _column_blocks(shape)
        numbers = (np.int32(shape.n), np.int32(shape.channels), eps)
        runtime.launch(source, "cuda_batch_norm_columns", grid, block, (x, scale, bias, y, mean, var, *numbers))
    elif threads := shape.held((16, 32)):
        arguments = (x, scale, bias, y, mean, var, *shape.numbers, shape.count, eps)
        runtime.launch(source, f"cuda_batch_norm_held{shape.suffix}", shape.channels, threads, arguments)
    else:
        splits, chunk = shape.split()
        blocks, ends = shape.channels * splits, (np.int32(splits), np.int32(chunk))
        parts = runtime.empty((blocks, 3), _F64 if x.dtype == _F64 else _F32)
        arguments = (x, parts, *shape.numbers, *ends)
        runtime.launch(source, f"cuda_batch_norm_moments{shape.suffix}", blocks, 256, arguments)
        arguments = (x, parts, scale, bias, y, mean, var, *shape.numbers, *ends, eps)
        runtime.launch(source, f"cuda_batch_norm_joined{shape.suffix}", blocks, 256, arguments)
    return y, mean, var


def _backward(problem: Problem, x: DeviceArray, ct: DeviceArray, *vectors: DeviceArray) -> tuple[DeviceArray, ...]:
    """Of x, ct, scale, mean and var."""
    runtime, shape, dtype = x.runtime, _shape(problem.inputs[0], _aligned(x, ct)), problem.inputs[2].dtype
    dx, dscale, dbias = (runtime.empty(s.shape, s.dtype) for s in problem.outputs)
    if x.size == 0:
        return dx, runtime.zeros(dscale.shape, dtype), runtime.zeros(dbias.shape, dtype)
    source, eps = _program("batch_norm_backward.cu", x.dtype, dtype), shape.number(problem.attrs.eps)
    inputs, results = (x, ct, *vectors), (dx, dscale, dbias)
    if shape.plane == 1:
        grid, block = _column_blocks(shape)
        numbers = (np.int32(shape.n), np.int32(shape.channels), eps)
        runtime.launch(source, "cuda_batch_norm_back_columns", grid, block, (*inputs, *results, *numbers))
    elif threads := shape.held((8, 16)):
        arguments = (*inputs, *results, *shape.numbers, shape.count, eps)
        runtime.launch(source, f"cuda_batch_norm_back_held{shape.suffix}", shape.channels, threads, arguments)
    else:
        splits, chunk = shape.split()
        blocks, ends = shape.channels * splits, (np.int32(splits), np.int32(chunk))
        parts = runtime.empty((blocks, 2), _F64 if x.dtype == _F64 else _F32)
        arguments = (*inputs, parts, *shape.numbers, *ends, eps)
        runtime.launch(source, f"cuda_batch_norm_back_sums{shape.suffix}", blocks, 256, arguments)
        arguments = (*inputs, parts, *results, *shape.numbers, *ends, shape.count, eps)
        runtime.launch(source, f"cuda_batch_norm_back_joined{shape.suffix}", blocks, 256, arguments)
    return dx, dscale, dbias


def _given(problem: Problem, x: DeviceArray, *vectors: DeviceArray) -> DeviceArray:
    """Of x, scale, bias, mean and var."""
    runtime, shape = x.runtime, _shape(problem.inputs[0], _aligned(x))
    y = runtime.empty(x.shape, x.dtype)
    if x.size == 0:
        return y
    source, eps = _program("batch_norm.cu", x.dtype, problem.inputs[1].dtype), shape.number(problem.attrs.eps)
    if shape.plane == 1:
        numbers = (np.int64(x.size), np.int32(shape.channels), eps)
        runtime.each(source, "cuda_batch_norm_given_columns", x.size, (x, *vectors, y, *numbers))
    else:
        splits, chunk = shape.split()
        arguments = (x, *vectors, y, *shape.numbers, np.int32(splits), np.int32(chunk), eps)
        runtime.launch(source, f"cuda_batch_norm_given{shape.suffix}", shape.channels * splits, 256, arguments)
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
    "batch_norm_training_backward": (EagerKernel("cuda_batch_norm_training_backward", _backward, _usable),),
    "running_statistics": (EagerKernel("cuda_running_statistics", _running, _running_usable),),
}


def programs() -> Iterator[Program]:
    """Every program of the family."""
    for file, pair in itertools.product(("batch_norm.cu", "batch_norm_backward.cu"), _PAIRS):
        yield _program(file, *pair)
