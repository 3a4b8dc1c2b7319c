"""Sums and means of floats in NumPy's order, so that they have the reference's bits.

Axes of length 1 are left out and neighbours that are alike joined: a shape becomes runs of kept and summed elements. A
last run that is summed is added pairwise, in halves and eights; all others one after the other, in the order of memory.
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
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.problem import Problem

Runs = tuple[tuple[int, bool], ...]

_F32 = np.dtype(np.float32)
_SUMS = {np.dtype(np.float16): _F32, bfloat16: _F32, _F32: _F32, np.dtype(np.float64): np.dtype(np.float64)}
_PART = 16_384  # numbers of a block, at most; it has room for 512 leaves of 64 or more
_LONGEST = 2048  # numbers that a thread adds one after the other, unless there are many threads
_MANY = 1 << 15


def runs_of(shape: tuple[int, ...], axes: tuple[int, ...]) -> Runs:
    """Lengths of neighbouring axes that are alike, and whether they are reduced; at least one is."""
    runs: list[tuple[int, bool]] = []
    for axis, n in enumerate(shape):
        reduced = axis in axes
        if n == 1:
            continue
        if runs and runs[-1][1] == reduced:
            runs[-1] = (runs[-1][0] * n, reduced)
        else:
            runs.append((n, reduced))
    return tuple(runs) if any(reduced for _, reduced in runs) else (*runs, (1, True))


def axes_of(problem: Problem) -> tuple[int, ...]:
    """The axes that a problem reduces, sorted."""
    x, axis = problem.inputs[0], problem.attrs.axis
    if axis is None:
        return tuple(range(x.ndim))
    return tuple(sorted({a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)}))


@dataclass(frozen=True, slots=True)
class _Launch:
    program: Program
    kernel: str
    grid: int
    block: int
    size: int
    dtype: Any
    numbers: tuple[Any, ...]


def _program(source: Any, total: Any, result: Any) -> Program:
    return program("sums.cu", SRC=type_name(source), ACC=type_name(total), DST=type_name(result))


def _in_turn(runs: Runs) -> tuple[int, int, int, int, int]:
    """Runs as [K0, R1, K1, R2, K2]."""
    lengths = [n for n, _ in runs]
    if not runs[0][1]:
        lengths = lengths if len(lengths) % 2 else [*lengths, 1]
    else:
        lengths = [1, *lengths] if len(lengths) % 2 == 0 else [1, *lengths, 1]
    k0, r1, k1, r2, k2 = (*lengths, 1, 1)[:5]
    return k0, r1, k1, r2, k2


def _rows(rows: int, n: int) -> Iterator[tuple[str, int, int, tuple[Any, ...], int]]:
    """Kernel, grid, block and numbers, and results of the launches that sum rows."""
    if n <= 128:
        yield "cuda_sum_short_rows", -(-rows // 32), 256, (np.int64(rows), np.int32(n)), rows
        return
    depth, part = 0, n
    while part > _PART or (part > 2048 and rows << depth < 512):
        depth, part = depth + 1, part - part // 16 * 8
    threads = 64 if part <= 1024 else 256
    yield "cuda_sum_rows", rows << depth, threads, (np.int32(n), np.int32(depth)), rows << depth
    while depth:
        step = min(depth, 10)
        depth -= step
        yield "cuda_sum_parts", rows << depth, 1 << (step - 1), (), rows << depth


@functools.lru_cache(maxsize=4096)
def _launches(problem: Problem) -> tuple[_Launch, ...]:
    x, y = problem.inputs[0], problem.outputs[0]
    source, result, runs = storage_of(x.dtype), storage_of(y.dtype), runs_of(x.shape, axes_of(problem))
    total = _SUMS[source]
    steps: list[tuple[str, int, int, tuple[Any, ...], int]] = []
    if runs[-1][1]:
        steps += _rows(math.prod(n for n, _ in runs[:-1]), runs[-1][0])
        runs = runs[:-1]
    if any(reduced for _, reduced in runs):
        _, r1, k1, r2, k2 = _in_turn(runs)
        numbers = (np.uint32(y.size), np.uint32(k1), np.uint32(k2), np.int32(r1), np.int32(r2))
        steps.append(("cuda_sum_in_turn", -(-y.size // 256), 256, numbers, y.size))
    divisor, made = np.int64(x.size // y.size if problem.op == "mean" else -1), []
    for i, (kernel, grid, block, numbers, size) in enumerate(steps):
        last = i + 1 == len(steps)
        types = (total if i else source, total, result if last else total)
        numbers = (*numbers, divisor if last else np.int64(-1))
        made.append(_Launch(_program(*types), kernel, grid, block, size, types[2], numbers))
    return tuple(made)


def _run(problem: Problem, x: DeviceArray) -> DeviceArray:
    y, launches, runtime = problem.outputs[0], _launches(problem), x.runtime
    *_, last = launches
    out = runtime.empty(y.shape, last.dtype)
    for one in launches:
        result = out if one is last else runtime.empty((one.size,), one.dtype)
        runtime.launch(one.program, one.kernel, one.grid, one.block, (x, result, *one.numbers))
        x = result
    return out


def _usable(problem: Problem) -> str | None:
    x, y = problem.inputs[0], problem.outputs[0]
    if storage_of(x.dtype) not in _SUMS:
        return f"{x.dtype}; only floats have an order"
    if not x.size or not y.size or x.size == y.size:
        return "nothing to add"
    runs = runs_of(x.shape, axes_of(problem))
    turns = [n for n, reduced in (runs[:-1] if runs[-1][1] else runs) if reduced]
    if len(turns) > 2:
        return f"{len(turns)} runs of numbers apart; at most 2"
    if math.prod(turns) > _LONGEST and y.size < _MANY:
        return f"{counted(math.prod(turns), 'number')} in turn, for {counted(y.size, 'result')} only"
    return "2**31 elements or more" if x.size >> 31 else None


def ordered(op: str) -> EagerKernel:
    """The kernel of "sum" or "mean"."""
    return EagerKernel(f"cuda_{op}_in_order", _run, _usable)


def programs() -> Iterator[Program]:
    """Every program of the family."""
    for source, total in _SUMS.items():
        pairs = ((source, source), (source, total), (total, total), (total, source))
        for first, last in dict.fromkeys(pairs):
            yield _program(first, total, last)
