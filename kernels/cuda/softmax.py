"""Softmax and its logarithm along an axis: rows in registers, or read twice where they are long; columns by threads."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_DTYPES = tuple(map(np.dtype, (np.float32, np.float64, np.float16, bfloat16)))

LONGEST_ROW = 1 << 15  # in order: a block has room for 512 parts of 64 numbers or more
_LONGEST_COLUMN, _MANY = 2048, 1 << 15  # numbers that a thread adds one after the other, unless there are many

_Launch = tuple[str, int, "int | tuple[int, int]", tuple[Any, ...]]  # kernel, grid, block and numbers


def power_of_two(n: int) -> int:
    """The smallest power of two that is no less than n."""
    return 1 << max(0, n - 1).bit_length()


def _row_launch(rows: int, n: int, size: int, width: int, log: np.int32) -> _Launch:
    suffix = "_wide" if width > 1 and n % width == 0 else ""
    units = n // width if suffix else n
    most = 4 if suffix else 16
    if units <= 32 * most:
        lanes = min(32, power_of_two(units))
        loads = next(k for k in (1, 4, 16) if units <= lanes * k)
        numbers = (np.int64(rows), np.int64(n), np.int32(lanes.bit_length() - 1), log)
        return f"cuda_softmax_lanes{suffix}_{loads}", -(-rows * lanes // 256), 256, numbers
    wide = 24 if size == 2 else 32
    held = (wide if suffix else 16) // (4 if size == 8 else 1)  # elements of a row that a thread of a block keeps
    if n <= 512 * held:
        return f"cuda_softmax_block{suffix}", rows, max(64, power_of_two(-(-n // held))), (np.int64(n), log)
    return f"cuda_softmax_long{suffix}", rows, 512, (np.int64(n), log)


def _column_launch(outer: int, n: int, inner: int, log: np.int32) -> _Launch:
    columns = outer * inner
    down = 1
    while down < 8 and down * 4 <= n and columns * down < 1 << 16:
        down *= 2
    block = (256 // down, down)
    numbers = tuple(map(np.int64, (columns, n, inner)))
    return "cuda_softmax_columns", -(-columns // block[0]), block, (*numbers, log)


def _around(problem: Problem) -> tuple[int, int, int]:
    """Elements before, along and behind the axis."""
    x = problem.inputs[0]
    axis = problem.attrs.axis % x.ndim
    return math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])


@functools.lru_cache(maxsize=4096)
def _prepared(problem: Problem, aligned: bool) -> tuple[Program, _Launch]:
    x, log, (outer, n, inner) = problem.inputs[0], np.int32(problem.op == "log_softmax"), _around(problem)
    size = x.dtype.itemsize
    width = 16 // size if aligned else 1
    launch = _row_launch(outer, n, size, width, log) if inner == 1 else _column_launch(outer, n, inner, log)
    return _program(x.dtype), launch


def _program(dtype: Any) -> Program:
    return program("softmax.cu", NUM=type_name(dtype))


@functools.lru_cache(maxsize=4096)
def _launch_in_order(problem: Problem) -> _Launch:
    outer, n, inner = _around(problem)
    log = np.int32(problem.op == "log_softmax")
    if inner > 1:
        numbers = (np.uint32(outer * inner), np.int32(n), np.uint32(inner), log)
        return "cuda_softmax_in_turn", -(-outer * inner // 256), 256, numbers
    if n <= 128:
        return "cuda_softmax_short_rows", -(-outer // 32), 256, (np.int64(outer), np.int32(n), log)
    return "cuda_softmax_rows", outer, 64 if n <= 1024 else 256, (np.int32(n), log)


def _run_in_order(problem: Problem, x: DeviceArray) -> DeviceArray:
    y = x.runtime.empty(x.shape, x.dtype)
    if y.size:
        kernel, grid, block, numbers = _launch_in_order(problem)
        x.runtime.launch(program("softmax_in_order.cu"), kernel, grid, block, (x, y, *numbers))
    return y


def _usable_in_order(problem: Problem) -> str | None:
    """Why the sums are not added in NumPy's order: only those of float32 have equal terms."""
    x, (outer, n, inner) = problem.inputs[0], _around(problem)
    if x.dtype != np.float32:
        return f"{x.dtype}; float32 only"
    if inner == 1:
        return None if n <= LONGEST_ROW else f"rows of {counted(n, 'number')}; at most {LONGEST_ROW}"
    if outer * inner >> 31:
        return "2**31 columns or more"
    few = n > _LONGEST_COLUMN and outer * inner < _MANY
    return f"{counted(n, 'number')} in turn, for {outer * inner} columns only" if few else None


def _run(problem: Problem, x: DeviceArray) -> DeviceArray:
    y = x.runtime.empty(x.shape, x.dtype)
    if y.size:
        one, (kernel, grid, block, numbers) = _prepared(problem, x.address % 16 == 0)
        x.runtime.launch(one, kernel, grid, block, (x, y, *numbers))
    return y


def _usable(problem: Problem) -> str | None:
    dtype = problem.inputs[0].dtype
    return None if dtype in _DTYPES else f"{dtype}; only floats"


KERNELS: dict[str, tuple[Kernel, ...]] = {
    op: (
        EagerKernel(f"cuda_{op}_in_order", _run_in_order, _usable_in_order),
        EagerKernel(f"cuda_{op}", _run, _usable),
    )
    for op in ("softmax", "log_softmax")
}


def programs() -> Iterator[Program]:
    """Every program of the family."""
    yield program("softmax_in_order.cu")
    yield from map(_program, _DTYPES)
