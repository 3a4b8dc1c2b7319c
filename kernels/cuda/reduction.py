"""Reductions over any axes: sums, means, products, extremes, and places of extremes.

Axes of length 1 are left out and neighbours that are alike are joined, so that a shape becomes runs of kept and reduced
elements. Each pass reduces one run, or two with a kept run between them; a pass of too few results splits its run over
blocks, and the next pass reduces what they leave. Additions have a fixed order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.kernels.cuda import sums
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import TYPES, Program, program, type_name
from megengine.kernels.cuda.sums import Runs, axes_of, runs_of
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_BLOCK = 256
_BLOCKS = 528  # of a launch, that a GPU be busy: four for each multiprocessor of a large one
_LEAST = 1024  # loads of a block, below which splitting a row costs more than it gains
_MOST = {True: 256 * 64, False: 64}  # loads along a row of one block; rows of a column for each thread
_HALVES = (np.dtype(np.float16), bfloat16)
_MERGES = {"sum": 0, "mean": 0, "prod": 1, "max": 2, "min": 3, "argmax": 4, "argmin": 5}
_INT = np.dtype(np.int32)


@dataclass(frozen=True, slots=True)
class Kind:
    """A reduction of one dtype: its macros, and the dtypes of elements, of what is accumulated and of results."""

    op: str
    source: np.dtype
    sum: np.dtype
    result: np.dtype

    @property
    def places(self) -> bool:
        """Whether the result is places of elements."""
        return self.op.startswith("arg")

    def program(self, *, first: bool, last: bool) -> Program:
        """The program of a pass; the first reads elements, the last writes results."""
        source, result = self.source if first else self.sum, self.result if last and not self.places else self.sum
        merge, empty = _merge(self.op, self.source, self.sum)
        types = {"SRC": type_name(source), "ACC": type_name(self.sum), "DST": type_name(result)}
        means = int(self.op == "mean" or self.sum.kind == "f")
        return program("reduction.cu", **types, MERGE=merge, EMPTY=empty, MEANS=means)


def _merge(op: str, source: np.dtype, total: np.dtype) -> tuple[int, str]:
    """The number of how two are joined, and the result of no elements. Sums of bool are "any", products "all"."""
    if source == np.bool_ and op in ("sum", "prod"):
        return (2, "0") if op == "sum" else (3, "1")
    merge = _MERGES[op]
    if merge < 2:
        return merge, str(merge)
    largest = merge in (2, 4)
    if total.kind == "f":
        return merge, "__uint_as_float(0xff800000u)" if largest else "__uint_as_float(0x7f800000u)"
    limits = np.iinfo(total)
    end = int(limits.min if largest else limits.max)
    suffix = "u" * (total.kind == "u") + "ll" * (total.itemsize == 8)
    return merge, f"({end + 1}{suffix} - 1)" if end < 0 else f"{end}{suffix}"


@functools.cache
def kind_of(op: str, dtype: np.dtype) -> Kind:
    """The reduction of a dtype. Integers are added modulo the size of their type, so without signs."""
    result = _INT if op.startswith("arg") else dtype
    if dtype in _HALVES:
        return Kind(op, dtype, np.dtype(np.float32), result)
    if dtype.kind == "f":
        return Kind(op, dtype, dtype, result)
    wide = dtype.itemsize == 8
    if op == "mean":
        return Kind(op, dtype, np.dtype(np.uint64 if dtype.kind == "u" else np.int64), result)
    if op in ("sum", "prod") and dtype != np.bool_:
        return Kind(op, dtype, np.dtype(np.uint64 if wide else np.uint32), result)
    return Kind(op, dtype, dtype if wide or dtype == np.uint32 else _INT, result)


@dataclass(frozen=True, slots=True)
class _Pass:
    """One launch: results of one run of elements; `numbers` are the arguments behind the arrays."""

    program: Program
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    size: int
    dtype: np.dtype
    numbers: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Way:
    """How a pass goes through its elements: a kernel, its grid, block and numbers, and how many results are left."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    numbers: tuple[Any, ...]
    splits: int = 1


def _power_of_two(n: int, most: int) -> int:
    """The smallest power of two that is no less than n, or `most`."""
    return min(most, 1 << max(0, n - 1).bit_length())


def _split(blocks: int, units: int, least: int, most: int) -> tuple[int, int]:
    """Over how many blocks each of so many runs is split, and the units of each."""
    wanted = min(-(-_BLOCKS // max(1, blocks)), -(-units // least))
    splits = max(1, wanted, -(-units // most))
    chunk = -(-units // splits)
    return max(1, -(-units // max(1, chunk))), max(1, chunk)


def _row_way(rows: int, pieces: int, n: int, width: int) -> _Way:
    """Rows of `pieces` of n elements, `rows * n` from one to the next."""
    suffix, n = ("_wide", n // width) if width > 1 and n % width == 0 else ("", n)
    units = pieces * n
    shape = (np.int64(rows), np.int64(pieces), np.int64(n))
    if units <= 128 or (units <= 1024 and rows >= 4 * _BLOCKS):
        lanes = _power_of_two(-(-units // 2) if units > 8 else units, 32)
        shift = np.int32(lanes.bit_length() - 1)
        return _Way(f"cuda_reduce_groups{suffix}", (-(-rows * lanes // _BLOCK),), (_BLOCK,), (*shape, shift))
    splits, chunk = _split(rows, units, _LEAST, _MOST[True])
    numbers = (*shape, np.int32(splits), np.int64(chunk))
    return _Way(f"cuda_reduce_rows{suffix}", (rows * splits,), (_BLOCK,), numbers, splits)


def _column_way(outer: int, n: int, inner: int, width: int) -> _Way:
    """Columns of [outer, n, inner]."""
    suffix = "_wide" if width > 1 and inner % width == 0 and outer * inner >= width * 2048 else ""
    units = inner // width if suffix else inner
    if n <= 64 and (n <= 8 or outer * units >= 16 * _BLOCK):
        across = _power_of_two(units, _BLOCK)
        down = _BLOCK // across
        grid, shape = (-(-units // across), min(-(-outer // down), 65535)), (outer, n, inner)
        return _Way(f"cuda_reduce_threads{suffix}", grid, (across, down), tuple(map(np.int64, shape)))
    across = _power_of_two(units, 32)
    down, tiles = _BLOCK // across, -(-units // across)
    splits, chunk = _split(outer * tiles, n, 16 * down, _MOST[False] * down)
    numbers = (np.int64(n), np.int64(inner), np.int32(tiles), np.int32(splits), np.int64(chunk))
    return _Way(f"cuda_reduce_columns{suffix}", (outer * splits * tiles,), (across, down), numbers, splits)


def _next_way(runs: Runs, width: int) -> tuple[_Way, Runs]:
    """The way that reduces a run, or two, and the runs that are left."""
    lengths = [n for n, _ in runs]
    if len(runs) == 3 and runs[-1][1] and lengths[2] >= 32 and lengths[0] * lengths[2] < 1 << 31:
        first, kept, last = lengths
        way = _row_way(kept, first, last, width)
        return way, ((kept, False), (way.splits, True))
    at = max(i for i, (_, reduced) in enumerate(runs) if reduced)
    if len(runs) == 3 and runs[0][1]:
        at = 0
    outer, n, inner = math.prod(lengths[:at]), lengths[at], math.prod(lengths[at + 1 :])
    way = _row_way(outer, 1, n, width) if inner == 1 else _column_way(outer, n, inner, width)
    return way, (*runs[:at], (way.splits, True), *runs[at + 1 :])


def _ended(runs: Runs) -> Runs:
    """The runs without those of length 1, kept neighbours joined."""
    return runs_of(tuple(n for n, _ in runs), tuple(i for i, (_, reduced) in enumerate(runs) if reduced))


@dataclass(frozen=True, slots=True)
class _Plan:
    """The launches of a reduction; none where the result is the operand in another shape."""

    passes: tuple[_Pass, ...]
    places: bool
    shape: tuple[int, ...]
    dtype: np.dtype


def _passes(kind: Kind, runs: Runs, size: int, divisor: int, *, aligned: bool) -> tuple[_Pass, ...]:
    """The launches of a reduction to `size` results; the address of the operand is a multiple of 16 if `aligned`."""
    made: list[_Pass] = []
    while not made or runs[-1] != (1, True):
        dtype = kind.sum if made else kind.source
        way, runs = _next_way(runs, min(8, 16 // dtype.itemsize) if aligned or made else 1)
        left, runs = math.prod(n for n, _ in runs), _ended(runs)
        last = runs[-1] == (1, True)
        source = kind.program(first=not made, last=last)
        numbers = (*way.numbers, np.int64(divisor if last else -1))
        dtype = kind.result if last else kind.sum
        made.append(_Pass(source, way.kernel, way.grid, way.block, size if last else left, dtype, numbers))
    return tuple(made)


@functools.lru_cache(maxsize=4096)
def _plan(
    op: str, dtype: np.dtype, shape: tuple[int, ...], axes: tuple[int, ...], out: tuple[int, ...], aligned: bool
) -> _Plan:
    kind, size, count = kind_of(op, dtype), math.prod(out), math.prod(shape)
    runs = runs_of(shape, axes) if count else ((size, False), (0, True))
    stays = runs[-1] == (1, True) and not kind.places
    passes = (
        () if stays or not size else _passes(kind, runs, size, count // size if op == "mean" else -1, aligned=aligned)
    )
    return _Plan(passes, kind.places, out, kind.result)


@functools.lru_cache(maxsize=4096)
def _prepared(problem: Problem, aligned: bool) -> _Plan:
    x = problem.inputs[0]
    return _plan(problem.op, storage_of(x.dtype), x.shape, axes_of(problem), problem.outputs[0].shape, aligned)


def _run_plan(plan: _Plan, x: DeviceArray) -> DeviceArray:
    if not plan.passes:
        return x.reshape(plan.shape) if x.size else x.runtime.empty(plan.shape, plan.dtype)
    runtime, last, values, places = x.runtime, plan.passes[-1], x, None
    out = runtime.empty(plan.shape, plan.dtype)
    for one in plan.passes:
        result = out if one is last else runtime.empty((one.size,), one.dtype)
        where = None
        if plan.places:
            where, result = (out, None) if one is last else (runtime.empty((one.size,), _INT), result)
        runtime.launch(one.program, one.kernel, one.grid, one.block, (values, places, result, where, *one.numbers))
        values, places = result, where
    return out


def reduced(op: str, x: DeviceArray, axes: tuple[int, ...], shape: tuple[int, ...]) -> DeviceArray:
    """A reduction of x over axes (non-negative, sorted), of that result's shape."""
    return _run_plan(_plan(op, x.dtype, x.shape, axes, shape, x.address % 16 == 0), x)


def _run(problem: Problem, x: DeviceArray) -> DeviceArray:
    return _run_plan(_prepared(problem, x.address % 16 == 0), x)


def _usable(problem: Problem) -> str | None:
    dtype = storage_of(problem.inputs[0].dtype)
    return None if dtype in TYPES else f"{dtype}; only real numbers"


KERNELS: dict[str, tuple[Kernel, ...]] = {op: (EagerKernel(f"cuda_{op}", _run, _usable),) for op in _MERGES}
KERNELS |= {op: (sums.ordered(op), *KERNELS[op]) for op in ("sum", "mean")}


def programs() -> Iterator[Program]:
    """Every program of the family."""
    yield from sums.programs()
    seen = set()
    for op in _MERGES:
        for dtype in TYPES:
            kind = kind_of(op, dtype)
            for first, last in ((True, True), (True, False), (False, False), (False, True)):
                one = kind.program(first=first, last=last)
                if one not in seen:
                    seen.add(one)
                    yield one
