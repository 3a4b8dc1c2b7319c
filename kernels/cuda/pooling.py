"""Pooling on a GPU: the largest numbers of windows, their places, their gradient, and means.

A thread computes one place of several planes, or 16 bytes of neighbouring channels where channels are last.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.reduction import reduced
from megengine.kernels.cuda.sources import TYPES, Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

SPACE = 3  # most axes of windows
_FIELDS = ("size", "count", "kernel", "stride", "before", "dilation")
_WINDOWS = np.dtype([(name, "i4", SPACE) for name in _FIELDS], align=True)
_BLOCK, _MOST_BLOCKS = 256, 1 << 13
_BYTES = 16  # of the widest load
_FEW_TAPS = 9  # of a window whose loop is unrolled
_NO_TAP = 255  # of taps numbered by a byte, the one outside
_MOST_AGAIN = 3  # windows along an axis that hold one place and are unrolled
_FARTHEST = 1 << 31


@dataclass(frozen=True, slots=True)
class _Launch:
    """A kernel with what stands behind its arrays."""

    program: Program
    grid: tuple[int, int]
    block: tuple[int, int]
    numbers: tuple[Any, ...]


def _windows(problem: Problem, x: tuple[int, ...], y: tuple[int, ...]) -> np.ndarray:
    """The windows over x [N,C,*size] with results y, as the kernels take them: missing axes before the others are 1."""
    attrs, axes = problem.attrs, len(problem.attrs.kernel)
    made = np.zeros((), _WINDOWS)
    values: dict[str, Any] = {
        "size": x[2:],
        "count": y[2:],
        "kernel": attrs.kernel,
        "stride": attrs.stride,
        "before": [a for a, _ in attrs.padding],
        "dilation": attrs.get("dilation", (1,) * axes),
    }
    for name, value in values.items():
        made[name] = (*(name != "before",) * (SPACE - axes), *value)
    return made


def _unrolled(problem: Problem, x: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of a window of few taps without gaps over a plane that is not empty; (0, 0) for others."""
    kernel, gaps = problem.attrs.kernel, problem.attrs.get("dilation", (1,))
    plain = len(kernel) == 2 and all(d == 1 for d in gaps) and 0 not in x
    return kernel if plain and math.prod(kernel) <= _FEW_TAPS else (0, 0)


def _blocks(places: int, planes: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The grid and the block for places of planes."""
    across = min(_BLOCK, 1 << max(0, places - 1).bit_length())
    columns = -(-places // across)
    down = _BLOCK // across
    return (columns, min(-(-planes // down), max(1, _MOST_BLOCKS // columns))), (across, down)


# ---------------------------------------------------------------- the largest and means


def pool_program(dtype: np.dtype, mean: bool, window: tuple[int, int], pack: int = 1) -> Program:
    """The program of values of a dtype, for windows of known sizes or (0, 0)."""
    return program("pooling.cu", TYPE=type_name(dtype), MEAN=int(mean), TALL=window[0], BROAD=window[1], PACK=pack)


def _mean(problem: Problem) -> bool:
    return problem.op == "avg_pool2d" or (problem.op == "pool" and not problem.attrs.largest)


@functools.lru_cache(maxsize=4096)
def _pool_launch(problem: Problem, last: bool, aligned: bool) -> _Launch:
    x, y, dtype = problem.inputs[0].shape, problem.outputs[0].shape, storage_of(problem.inputs[0].dtype)
    planes, channels = (x[0], x[1]) if last else (x[0] * x[1], 1)
    wide = math.gcd(channels, _BYTES // dtype.itemsize) if aligned else 1
    grid, block = _blocks(math.prod(y[2:]) * channels // wide, planes)
    padded = problem.attrs.get("count_include_pad", False)
    modes = (np.int32(padded), np.int32(problem.op == "avg_pool2d" and not padded))
    numbers = (_windows(problem, x, y), np.int32(channels), np.int64(planes), *modes)
    return _Launch(pool_program(dtype, _mean(problem), _unrolled(problem, x), wide), grid, block, numbers)


@functools.lru_cache(maxsize=4096)
def _whole(problem: Problem) -> str | None:
    """The reduction that pooling of floats by one window, the whole plane, is; None for other windows."""
    x, y, attrs = problem.inputs[0], problem.outputs[0], problem.attrs
    inside = tuple(attrs.kernel) == x.shape[2:] and not any(map(any, attrs.padding)) and y.size
    if not inside or math.prod(attrs.kernel) <= _FEW_TAPS:
        return None
    if not _mean(problem):
        return "max"
    # the reference adds the numbers of a window in turn; float parts of integer networks must have its bits
    return None if storage_of(x.dtype).kind in "iu" or x.dtype == np.float32 else "mean"


def _pool(problem: Problem, x: DeviceArray) -> DeviceArray:
    whole, shape = _whole(problem), problem.outputs[0].shape
    if whole is not None:
        return reduced(whole, x, tuple(range(2, len(shape))), shape)
    y = x.runtime.empty(shape, x.dtype)
    if y.size:
        one = _pool_launch(problem, False, False)
        x.runtime.launch(one.program, "cuda_pool", one.grid, one.block, (x, y, *one.numbers))
    return y


def pool_last(problem: Problem, x: DeviceArray) -> DeviceArray:
    """max_pool2d or avg_pool2d of x [N,H,W,C] -> [N,H,W,C]."""
    n, c, height, width = problem.outputs[0].shape
    y = x.runtime.empty((n, height, width, c), x.dtype)
    if y.size:
        one = _pool_launch(problem, True, x.address % _BYTES == 0)
        x.runtime.launch(one.program, "cuda_pool", one.grid, one.block, (x, y, *one.numbers))
    return y


# ---------------------------------------------------------------- places and gradients


def places_program(dtype: np.dtype, window: tuple[int, int], few: bool, again: int = 0) -> Program:
    """The program of places in windows of known sizes or (0, 0); `few`: a byte holds the number of a tap.

    Along an axis at most `again` windows hold a place; 0 where these are not unrolled.
    """
    sizes = {"TALL": window[0], "BROAD": window[1], "AGAIN": again, "TAP": "u8" if few else "int"}
    return program("pooling_places.cu", TYPE=type_name(dtype), **sizes)


def _again(problem: Problem, window: tuple[int, int]) -> int:
    """How many windows along an axis may hold a place, where the gradient unrolls them."""
    most = max(-(-k // s) for k, s in zip(window, problem.attrs.stride, strict=False))
    return most if problem.op == "max_pool2d_backward" and most <= _MOST_AGAIN else 0


@functools.lru_cache(maxsize=4096)
def _places_launch(problem: Problem) -> _Launch:
    """Of the places of each window; the numbers are the windows and how many planes there are."""
    x, y = problem.inputs[-1].shape, problem.outputs[0].shape
    y = problem.inputs[0].shape if problem.op == "max_pool2d_backward" else y
    planes = x[0] * x[1]
    grid, block = _blocks(math.prod(y[2:]), planes)
    few = math.prod(problem.attrs.kernel) <= _NO_TAP
    window = _unrolled(problem, x)
    made = places_program(storage_of(problem.inputs[-1].dtype), window, few, _again(problem, window))
    return _Launch(made, grid, block, (_windows(problem, x, y), np.int64(planes)))


def _places(problem: Problem, x: DeviceArray) -> DeviceArray:
    y = x.runtime.empty(problem.outputs[0].shape, np.int64)
    if y.size:
        one = _places_launch(problem)
        arguments = (x, y, *one.numbers, np.int32(problem.attrs.columns_first))
        x.runtime.launch(one.program, "cuda_pool_places", one.grid, one.block, arguments)
    return y


@functools.lru_cache(maxsize=4096)
def _gather_blocks(x: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    return _blocks(math.prod(x[2:]), x[0] * x[1])


def _max_backward(problem: Problem, ct: DeviceArray, x: DeviceArray) -> DeviceArray:
    """The tap that each window chose, then for every element the sum over the windows that chose it."""
    runtime = x.runtime
    dx = runtime.empty(x.shape, x.dtype)
    if not dx.size:
        return dx
    one = _places_launch(problem)
    taps = runtime.empty(ct.shape, np.uint8 if math.prod(problem.attrs.kernel) <= _NO_TAP else np.int32)
    runtime.launch(one.program, "cuda_pool_taps", one.grid, one.block, (x, taps, *one.numbers))
    runtime.launch(one.program, "cuda_pool_backward", *_gather_blocks(x.shape), (ct, taps, dx, *one.numbers))
    return dx


# ---------------------------------------------------------------- tables


def _usable(problem: Problem) -> str | None:
    dtypes = {storage_of(s.dtype) for s in problem.inputs}
    if len(dtypes) > 1 or np.dtype(np.bool_) in dtypes:
        return f"pooling of {', '.join(sorted(map(str, dtypes)))}"
    axes = len(problem.attrs.kernel)
    if axes > SPACE:
        return f"windows of {counted(axes, 'axis')}; at most {SPACE}"
    most = max(math.prod(s.shape[2:]) for s in (*problem.inputs, *problem.outputs))
    return f"planes of {counted(most, 'element')}" if most >= _FARTHEST else None


def _last_usable(problem: Problem) -> str | None:
    most = max(math.prod(s.shape[1:]) for s in (*problem.inputs, *problem.outputs))
    return f"images of {counted(most, 'element')}" if most >= _FARTHEST else _usable(problem)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "max_pool2d": (EagerKernel("cuda_max_pool2d", _pool, _usable),),
    "avg_pool2d": (EagerKernel("cuda_avg_pool2d", _pool, _usable),),
    "pool": (EagerKernel("cuda_pool", _pool, _usable),),
    "max_pool2d_backward": (EagerKernel("cuda_max_pool2d_backward", _max_backward, _usable),),
    "max_pool_indices": (EagerKernel("cuda_max_pool_indices", _places, _usable),),
}
LAST = {op: (EagerKernel(f"cuda_{op}_last", pool_last, _last_usable),) for op in ("max_pool2d", "avg_pool2d")}


def programs() -> Iterator[Program]:
    """Programs of every dtype; of some, those of windows of known sizes and of several channels a thread."""
    dtypes = [d for d in TYPES if d != np.bool_]
    for dtype in dtypes:
        yield places_program(dtype, (0, 0), True)
        yield from (pool_program(dtype, mean, (0, 0)) for mean in (False, True))
        yield pool_program(dtype, False, (3, 3), _BYTES // dtype.itemsize)
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), bfloat16):
        yield from (places_program(dtype, (3, 3), True, again) for again in range(_MOST_AGAIN + 1))
        yield places_program(dtype, (0, 0), False)
        yield from (pool_program(dtype, mean, (3, 3)) for mean in (False, True))
        yield pool_program(dtype, True, (0, 0), _BYTES // dtype.itemsize)
