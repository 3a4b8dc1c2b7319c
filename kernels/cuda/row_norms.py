"""Normalisation of the last axes or of groups of channels, with factors, and means over neighbouring channels."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.softmax import LONGEST_ROW, power_of_two
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_DTYPES = tuple(map(np.dtype, (np.float32, np.float64, np.float16, bfloat16)))


def _program(dtype: Any) -> Program:
    return program("row_norm.cu", NUM=type_name(dtype))


def _number(dtype: Any, value: float) -> Any:
    """A number of the type that elements of a dtype are computed with."""
    return np.float64(value) if dtype == np.float64 else np.float32(value)


@functools.lru_cache(maxsize=4096)
def _prepared(problem: Problem, aligned: bool) -> tuple[str, int, int, tuple[Any, ...]]:
    """The kernel, grid, block and numbers of a normalisation of rows."""
    x, a = problem.inputs[0], problem.attrs
    n = math.prod(x.shape[x.ndim - a.axes :])
    rows, size = x.size // n, x.dtype.itemsize
    wide = aligned and n % (16 // size) == 0
    suffix, units = ("_wide", n * size // 16) if wide else ("", n)
    options = (np.int32(a.centred), np.int32(a.reciprocal), _number(x.dtype, n), _number(x.dtype, a.eps))
    loads = (1, 4) if wide else (4, 8)
    if units <= 32 * loads[1]:
        lanes = min(32, power_of_two(units))
        fitting = next(k for k in loads if units <= lanes * k)
        numbers = (np.int64(rows), np.int64(n), np.int32(lanes.bit_length() - 1))
        return f"cuda_row_norm_lanes{suffix}_{fitting}", -(-rows * lanes // 256), 256, (*numbers, *options)
    held = 8 if size == 8 else 32 if wide else 16
    if n <= 512 * held:
        threads = max(64, power_of_two(-(-n // held)))
        return f"cuda_row_norm_block{suffix}", rows, threads, (np.int64(n), *options)
    return f"cuda_row_norm_long{suffix}", rows, 512, (np.int64(n), *options)


def _norm(problem: Problem, x: DeviceArray, *factors: DeviceArray) -> DeviceArray:
    y = x.runtime.empty(x.shape, x.dtype)
    if y.size:
        aligned = all(a.address % 16 == 0 for a in (x, *factors))
        kernel, grid, block, numbers = _prepared(problem, aligned)
        factor, shift = (*factors, None, None)[:2]
        x.runtime.launch(_program(x.dtype), kernel, grid, block, (x, factor, shift, y, *numbers))
    return y


@functools.lru_cache(maxsize=4096)
def _launch_in_order(problem: Problem) -> tuple[str, int, int, tuple[Any, ...]]:
    """The kernel, grid, block and numbers of a normalisation whose sums have NumPy's order."""
    x, a = problem.inputs[0], problem.attrs
    n = math.prod(x.shape[x.ndim - a.axes :])
    options = (np.int32(n), np.int32(a.centred), np.int32(a.reciprocal), np.float32(n), np.float32(a.eps))
    if n <= 128:
        return "cuda_row_norm_short", -(-x.size // n // 32), 256, (np.int64(x.size // n), *options)
    return "cuda_row_norm_rows", x.size // n, 64 if n <= 1024 else 256, options


def _norm_in_order(problem: Problem, x: DeviceArray, *factors: DeviceArray) -> DeviceArray:
    y = x.runtime.empty(x.shape, x.dtype)
    if y.size:
        kernel, grid, block, numbers = _launch_in_order(problem)
        factor, shift = (*factors, None, None)[:2]
        x.runtime.launch(program("row_norm_in_order.cu"), kernel, grid, block, (x, factor, shift, y, *numbers))
    return y


def _usable_in_order(problem: Problem) -> str | None:
    x = problem.inputs[0]
    if any(s.dtype != np.float32 for s in problem.inputs):
        return f"{x.dtype}; float32 only"
    n = math.prod(x.shape[x.ndim - problem.attrs.axes :])
    return None if n <= LONGEST_ROW else f"rows of {counted(n, 'number')}; at most {LONGEST_ROW}"


def _channel_mean(problem: Problem, x: DeviceArray) -> DeviceArray:
    y, (n, channels, *plane) = x.runtime.empty(x.shape, x.dtype), x.shape
    if y.size:
        inner, a = math.prod(plane), problem.attrs
        grid = (-(-inner // 128), min(n * channels, 65535))
        numbers = (np.int64(n), np.int32(channels), np.int64(inner), np.int32(a.window), np.int32(a.before))
        x.runtime.launch(_program(x.dtype), "cuda_channel_mean", grid, 128, (x, y, *numbers))
    return y


def _channel_norm(problem: Problem, x: DeviceArray, factors: DeviceArray) -> DeviceArray:
    y, (n, channels, *plane), a = x.runtime.empty(x.shape, x.dtype), x.shape, problem.attrs
    if y.size:
        each, inner = channels // a.groups, math.prod(plane)
        sizes = (np.int32(a.groups), np.int32(each), np.int64(inner), np.int32(factors.shape[0] // 2))
        numbers = (*sizes, _number(x.dtype, each * inner), _number(x.dtype, a.eps))
        x.runtime.launch(_program(x.dtype), "cuda_channel_norm", n * a.groups, 256, (x, factors, y, *numbers))
    return y


def _usable(problem: Problem) -> str | None:
    dtypes = {s.dtype for s in problem.inputs}
    one = len(dtypes) == 1 and problem.inputs[0].dtype in _DTYPES
    return None if one else f"{', '.join(sorted(map(str, dtypes)))}; only floats of one type"


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "fused_channel_mean": (EagerKernel("cuda_fused_channel_mean", _channel_mean, _usable),),
    "fused_channel_norm": (EagerKernel("cuda_fused_channel_norm", _channel_norm, _usable),),
    "fused_norm": (
        EagerKernel("cuda_fused_norm_in_order", _norm_in_order, _usable_in_order),
        EagerKernel("cuda_fused_norm", _norm, _usable),
    ),
}


def programs() -> Iterator[Program]:
    """Every program of the family."""
    yield program("row_norm_in_order.cu")
    yield from map(_program, _DTYPES)
