"""Integer averages of windows on a GPU, docs/integer-arithmetic.md bit for bit, in rows and channels-last."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import known_quantized, storage_of
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import bounds, index_type
from megengine.kernels.cuda.int_rows import scale_ratio
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.integer import f32

Arguments = tuple[Any, ...]


def _program(x: Any, y: Any, size: int = 0) -> Program:
    types = {"XT": type_name(storage_of(x)), "YT": type_name(storage_of(y))}
    return program("int_windows.cu", INDEX=index_type(size), **types)


def _window(problem: Problem) -> Arguments:
    """What kernels take behind other numbers: sizes of x, without a pitch, of y and of the windows."""
    a = problem.attrs
    (top, _), (left, _) = a.padding
    sizes = (*problem.inputs[0].shape[2:], 0, *problem.outputs[0].shape[2:], *a.kernel, *a.stride, top, left, 1, 1)
    return tuple(map(np.int32, sizes))


@functools.lru_cache(maxsize=4096)
def _average_launch(problem: Problem, last: bool) -> tuple[Program, Arguments]:
    x, y, a = problem.inputs[0], problem.outputs[0], problem.attrs
    dtype = known_quantized(x.dtype)
    zeros = (np.int32(dtype.zero_point), np.int32(a.dtype.zero_point))
    modes = map(np.int32, (x.shape[1], last, a.count_include_pad))
    numbers = (*modes, scale_ratio(problem), *map(f32, bounds(a.dtype)), *zeros, np.int64(y.size))
    return _program(dtype, y.dtype, max(x.size, y.size)), (*numbers, *_window(problem))


def _average(problem: Problem, x: DeviceArray) -> DeviceArray:
    unit, numbers = _average_launch(problem, last=False)
    out = problem.outputs[0]
    y = x.runtime.empty(out.shape, storage_of(out.dtype))
    x.runtime.each(unit, "cuda_average", y.size, (x, y, *numbers))
    return y


def _empty_last(problem: Problem, x: DeviceArray) -> DeviceArray:
    n, c, height, width = problem.outputs[0].shape
    return x.runtime.empty((n, height, width, c), storage_of(problem.outputs[0].dtype))


def average_last(problem: Problem, x: DeviceArray) -> DeviceArray:
    """qavg_pool2d of x [N,H,W,C] -> [N,H,W,C]."""
    unit, numbers = _average_launch(problem, last=True)
    y = _empty_last(problem, x)
    x.runtime.each(unit, "cuda_average", y.size, (x, y, *numbers))
    return y


KERNELS: dict[str, tuple[Kernel, ...]] = {"qavg_pool2d": (EagerKernel("cuda_qavg_pool2d", _average),)}
LAST = {
    "qavg_pool2d": (EagerKernel("cuda_qavg_pool2d_last", average_last),),
}


def programs() -> Iterator[Program]:
    """Every program of values of 8 bits, and of 16 beside 16."""
    eight, wide = (np.dtype(np.uint8), np.dtype(np.int8)), np.dtype(np.int16)
    yield from itertools.starmap(_program, (*itertools.product(eight, eight), (wide, wide), (wide, eight[0])))
