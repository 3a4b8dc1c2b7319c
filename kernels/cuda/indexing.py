"""Ops that take and put elements at places named by arrays: index, set_index, gather, scatter, one_hot."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import IndexOutOfRangeError
from megengine.core.sizes import slice_bounds
from megengine.core.text import counted
from megengine.kernels.cuda import walks
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.moves import distances, strided_copy, untyped
from megengine.kernels.cuda.rows import (
    INT32,
    INT64,
    Indexed,
    Rows,
    combine,
    combine_program,
    index_program,
    indexed,
    plain_rows,
    put,
    take,
    worst,
)
from megengine.kernels.cuda.sources import TYPES, Program, program, type_name
from megengine.kernels.cuda.walks import BLOCK, Axis, grid_of, merged, move
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

Ints = tuple[int, ...]
_POSITIONS = (1 << 31) - 4096  # they are numbered in 32 bits, to the end of the last tile that sorts them


def _broadcast(x: DeviceArray, shape: Ints) -> DeviceArray:
    """A dense array of that shape: x, or its elements repeated."""
    if x.shape == shape:
        return x
    steps = [0 if n == 1 else d for n, d in zip(x.shape, distances(x.shape), strict=True)]
    return strided_copy(x, shape, (*(0,) * (len(shape) - len(steps)), *steps))


# ---- index patterns
def _sliced(shape: Ints, pattern: tuple[Any, ...]) -> tuple[Ints, Ints, int]:
    """The shape, distances and first place of a pattern without index arrays."""
    bounds = [slice_bounds(a, b, c, n) for (a, b, c), n in zip(pattern, shape, strict=True)]
    lengths, apart = tuple(len(range(*b)) for b in bounds), distances(shape)
    first = sum(b[0] * d for b, d in zip(bounds, apart, strict=True)) if math.prod(lengths) else 0
    return lengths, tuple(b[2] * d for b, d in zip(bounds, apart, strict=True)), first


@functools.lru_cache(maxsize=4096)
def _plan(problem: Problem) -> tuple[Indexed, Rows, bool]:
    """The pattern of a problem, the rows that it takes or puts, and whether a value is repeated before.

    It is where its elements for successive indices are not evenly apart.
    """
    putting = problem.op == "set_index"
    whole = problem.outputs[0].shape if problem.op == "index_backward" else problem.inputs[0].shape
    indices = problem.inputs[2 if putting else 1 :]
    plan = indexed(whole, problem.attrs["pattern"], tuple(s.shape for s in indices))
    even = plan.rows(_steps_to(problem.inputs[1].shape, plan.shape)) if putting else None
    rows = even or plan.rows(distances(plan.shape))
    assert rows is not None  # dense rows are even
    return plan, rows, putting and even is None


@functools.cache
def _codes(dtype: np.dtype) -> Program:
    """The program that makes places of indices of a dtype."""
    return program("codes.cu", INDEX=type_name(dtype))


def _joined(op: str, plan: Indexed, indices: Sequence[DeviceArray]) -> tuple[DeviceArray, DeviceArray]:
    """The number of each place among all that could be indexed, and its distance in steps; checked, int64."""
    runtime = indices[0].runtime
    codes = runtime.empty((plan.count,), np.int64)
    places = None if plan.adjacent else runtime.empty((plan.count,), np.int64)
    parts = zip(plan.axes, plan.lengths, plan.distances, indices, strict=True)
    for k, (axis, length, distance, index) in enumerate(parts):
        index = _broadcast(index, plan.indices)
        refused = runtime.refusal(worst(op, axis, length))
        numbers = [np.int64(n) for n in (0, 1, length, distance)]
        arguments = (codes, places, index, *numbers, np.int32(k == 0), refused, np.int64(plan.count))
        runtime.each(_codes(index.dtype), "join", plan.count, arguments)
    return codes, codes if places is None else places


def _index(problem: Problem, x: DeviceArray, *indices: DeviceArray) -> DeviceArray:
    if not indices:
        return strided_copy(x, *_sliced(x.shape, problem.attrs["pattern"]))
    plan, rows, _ = _plan(problem)
    if len(indices) == 1 and indices[0].dtype in (INT32, INT64):
        axis, length = plan.axes[0], plan.lengths[0]
        refused = x.runtime.refusal(worst("index", axis, length))
        return take(x, plan.shape, indices[0], rows, length, refused)
    _, places = _joined("index", plan, indices)
    return take(x, plan.shape, places, rows, None, None)


def _index_backward(problem: Problem, ct: DeviceArray, *indices: DeviceArray) -> DeviceArray:
    shape = problem.outputs[0].shape
    out = ct.runtime.zeros(shape, ct.dtype)
    if not indices:
        _, strides, first = _sliced(shape, problem.attrs["pattern"])
        move(ct.shape, distances(ct.shape), strides, ct.dtype.itemsize, (0, first))(out, ct)
        return out
    plan, rows, _ = _plan(problem)
    codes, places = _joined("index_backward", plan, indices)
    combine("add", out, _broadcast(ct, plan.shape), rows, codes, places, math.prod(plan.lengths))
    return out


def _set_index(problem: Problem, x: DeviceArray, value: DeviceArray, *indices: DeviceArray) -> DeviceArray:
    out = x.runtime.duplicate(x)
    if not indices:
        lengths, strides, first = _sliced(x.shape, problem.attrs["pattern"])
        steps = _steps_to(value.shape, lengths)
        move(lengths, steps, strides, x.dtype.itemsize, (0, first))(out, value)
        return out
    plan, rows, repeated = _plan(problem)
    codes, places = _joined("set_index", plan, indices)
    if repeated:
        value = _broadcast(value, plan.shape)
    put(out, value, rows, codes, places, math.prod(plan.lengths))
    return out


def _steps_to(of: Ints, shape: Ints) -> Ints:
    """Distances of an array's elements along the axes of the shape that it broadcasts to; 0 where it repeats."""
    of = of[max(len(of) - len(shape), 0) :]  # further axes have length 1
    steps = tuple(0 if n == 1 else d for n, d in zip(of, distances(of), strict=True))
    return (*(0,) * (len(shape) - len(of)), *steps)


# ---- along an axis
@functools.lru_cache(maxsize=4096)
def _along(shape: Ints, index: Ints, axis: int) -> tuple[tuple[Any, int], ...]:
    """The launches over an index array along an axis: structures (rows.py) and numbers of elements."""
    apart = distances(shape)
    parts = zip(index, apart, distances(index), strict=True)
    axes = merged([Axis(n, 0 if k == axis else d, own) for k, (n, d, own) in enumerate(parts)])
    if not axes:
        axes = [Axis(1, 0, 1)]
    found = []
    outer, count = axes[0], math.prod(a.size for a in axes)
    step = outer.size if count < walks.LIMIT else max((walks.LIMIT - 1) // (count // outer.size), 1)
    for at in range(0, outer.size, step):
        part = Rows((), Axis(min(step, outer.size - at), outer.source, outer.target), tuple(axes[1:]), apart[axis])
        ((made, units),) = part.launches(1, 1)[1]
        made = made.copy()
        made["first_whole"], made["first_index"] = at * outer.source, at * outer.target
        found.append((made, units))
    return tuple(found)


def _gather_elements(problem: Problem, x: DeviceArray, index: DeviceArray) -> DeviceArray:
    out = x.runtime.empty(index.shape, x.dtype)
    axis = problem.attrs["axis"] % x.ndim
    refused = x.runtime.refusal(worst("gather_elements", problem.attrs["axis"], x.shape[axis]))
    if not out.size:
        return out
    if not x.size or index.dtype not in (INT32, INT64):
        places = _places_along(x.shape, index, axis, refused)
        return take(x, index.shape, places, plain_rows(index.size, 1), None, None)
    code, length = index_program(x.dtype.itemsize, index.dtype), np.int64(x.shape[axis])
    for made, count in _along(x.shape, index.shape, axis):
        arguments = (out, x, index, made, length, refused, np.uint32(count))
        x.runtime.launch(code, "take_along", grid_of(count), BLOCK, arguments)
    return out


def _places_along(shape: Ints, index: DeviceArray, axis: int, refused: DeviceArray) -> DeviceArray:
    """The place in a dense array of that shape that each index names; int64."""
    places = index.runtime.empty((index.size,), np.int64)
    if index.size:
        for made, count in _along(shape, index.shape, axis):
            arguments = (places, index, made, np.int64(shape[axis]), refused, np.uint32(count))
            index.runtime.launch(_codes(index.dtype), "places_along", grid_of(count), BLOCK, arguments)
    return places


def _placed(x: DeviceArray, updates: DeviceArray, codes: DeviceArray, inner: int, reduction: str) -> DeviceArray:
    """A copy of x [domain * inner] with rows of `inner` updates at the places `codes`."""
    out = x.runtime.duplicate(x)
    if not codes.size or not out.size:
        return out
    rows = plain_rows(codes.size, inner)
    domain = x.size // inner
    if reduction == "none":
        put(out, updates, rows, codes, codes, domain)
    else:
        combine(reduction, out, updates, rows, codes, codes, domain)
    return out


def _scatter_elements(problem: Problem, x: DeviceArray, index: DeviceArray, updates: DeviceArray) -> DeviceArray:
    axis = problem.attrs["axis"] % x.ndim
    refused = x.runtime.refusal(worst("scatter_elements", problem.attrs["axis"], x.shape[axis]))
    places = _places_along(x.shape, index, axis, refused)
    return _placed(x, updates, places, 1, problem.attrs["reduction"])


def _scatter_nd(problem: Problem, x: DeviceArray, index: DeviceArray, updates: DeviceArray) -> DeviceArray:
    depth, runtime = index.shape[-1], x.runtime
    count = math.prod(index.shape[:-1])
    codes = runtime.zeros((count,), np.int64) if depth == 0 else runtime.empty((count,), np.int64)
    for k, length in enumerate(x.shape[:depth]):
        refused = runtime.refusal(worst("scatter_nd", k, length))
        numbers = [np.int64(n) for n in (k, depth, length, 0)]
        arguments = (codes, None, index, *numbers, np.int32(k == 0), refused, np.int64(count))
        runtime.each(_codes(index.dtype), "join", count, arguments)
    return _placed(x, updates, codes, math.prod(x.shape[depth:]), problem.attrs["reduction"])


def _one_hot(problem: Problem, x: DeviceArray) -> DeviceArray:
    depth = problem.attrs["depth"]
    out = x.runtime.empty((*x.shape, depth), np.int32)

    def error(number: int) -> Exception:
        index = number + 1 - (1 << 30) if number + 1 >= 1 << 30 else -(number + 1)
        return IndexOutOfRangeError(f"one_hot: index {index} is out of range for {counted(depth, 'class')}")

    arguments = (out, x, np.int32(depth), x.runtime.refusal(error), np.int64(out.size))
    x.runtime.each(_one_hot_program(x.dtype), "one_hot", out.size, arguments)
    return out


def _one_hot_program(dtype: np.dtype) -> Program:
    return program("one_hot.cu", TYPE=type_name(dtype), WIDE="double" if dtype.kind == "f" else "long long")


def _no_halves(problem: Problem) -> str | None:
    """Leaves float16 and bfloat16 to float32, which the dispatch converts to."""
    dtype = storage_of(problem.inputs[0].dtype)
    return f"{dtype} is converted to float32" if _is_half(dtype) else untyped(problem)


def _is_half(dtype: np.dtype) -> bool:
    return dtype.itemsize == 2 and dtype.kind not in "iu"


def _few_positions(first: int) -> Callable[[Problem], str | None]:
    """The `usable` of kernels that number positions in 32 bits, and of those that combine elements."""

    def usable(problem: Problem) -> str | None:
        count = max((s.size for s in problem.inputs[first:]), default=0)
        if problem.op != "set_index" and (why := untyped(problem)):
            return why
        return None if count < _POSITIONS else f"indices: {count}; fewer than {_POSITIONS} are taken"

    return usable


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    for size, dtype in itertools.product((1, 2, 4, 8, 16), (INT32, INT64)):
        yield index_program(size, dtype)
    for dtype in TYPES:
        for size in {dtype.itemsize, 16 if dtype.kind in "fV" else dtype.itemsize}:
            yield combine_program(dtype, size)
        if dtype.kind in "iu":
            yield _codes(dtype)
        if not _is_half(dtype):
            yield _one_hot_program(dtype)


def _kernel(name: str, run: Callable[..., Any], **more: Any) -> tuple[Kernel, ...]:
    return (EagerKernel(f"cuda_{name}", run, **more),)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "index": _kernel("index", _index),
    "index_backward": _kernel("index_backward", _index_backward, usable=_few_positions(1)),
    "set_index": _kernel("set_index", _set_index, usable=_few_positions(2)),
    "gather_elements": _kernel("gather_elements", _gather_elements),
    "scatter_elements": _kernel("scatter_elements", _scatter_elements, usable=_few_positions(1)),
    "scatter_nd": _kernel("scatter_nd", _scatter_nd, usable=_few_positions(1)),
    "one_hot": _kernel("one_hot", _one_hot, usable=_no_halves),
}
