"""Ops that order, count and choose elements: topk, cumsum, nonzero, unique, numbers, nms."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.moves import transposed, untyped
from megengine.kernels.cuda.ordering import last_number, ordered, scanned, scanned_along
from megengine.kernels.cuda.rows import plain_rows, take
from megengine.kernels.cuda.sources import TYPES, Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_LIMIT = (1 << 31) - 4096  # elements: their places are numbered in 32 bits, to the end of the last tile
_SHAPE = np.dtype([("axes", "i4"), ("size", "u4", 64)], align=True)
_PLACES = program("places.cu")


def _select(dtype: np.dtype) -> Program:
    return program("selecting.cu", TYPE=type_name(dtype))


def _topk(problem: Problem, x: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
    k, shape = problem.attrs["k"], problem.outputs[0].shape
    rows = x.reshape((math.prod(x.shape[:-1]), x.shape[-1]))
    values, order = ordered(rows, k, descending=problem.attrs["descending"])
    assert values is not None
    return values.reshape(shape), order.reshape(shape)


def _cumsum(problem: Problem, x: DeviceArray) -> DeviceArray:
    return scanned_along(x, problem.attrs["axis"] % x.ndim, reverse=problem.attrs["reverse"])


def _numbers(problem: Problem, limit: DeviceArray) -> DeviceArray:
    count = max(int(limit.numpy()), 0)
    out = limit.runtime.empty((count,), np.int64)
    limit.runtime.each(_PLACES, "count_up", count, (out, np.int64(count)))
    return out


def _nonzero(problem: Problem, x: DeviceArray) -> DeviceArray:
    runtime, n = x.runtime, x.size
    if not n:
        return runtime.empty((x.ndim, 0), np.int64)
    found = runtime.empty((1, n), np.int32)
    runtime.each(_select(x.dtype), "mark", n, (found, x, np.int64(n)))
    sums = scanned(found)
    count = last_number(sums)
    out = runtime.empty((x.ndim, count), np.int64)
    if out.size:
        arguments = (out, sums, _described(x.shape), np.int64(count), np.int64(n))
        runtime.each(_PLACES, "write_places", n, arguments)
    return out


@functools.lru_cache(maxsize=1024)
def _described(shape: tuple[int, ...]) -> np.ndarray:
    made = np.zeros((), _SHAPE)
    made["axes"] = len(shape)
    made["size"][: len(shape)] = shape
    return made


# ---- unique
def _sorted_rows(x: DeviceArray) -> DeviceArray:
    """The order of the rows of x [n, width], by their first elements, then by the second, and so on; int32."""
    runtime, (n, width) = x.runtime, x.shape
    if width == 1:
        return ordered(x.reshape((1, n)), n, values=False)[1].reshape((n,))
    order = None
    for at in reversed(range(width)):  # the last key first: sorts are stable
        keys = runtime.empty((1, n), x.dtype)
        runtime.each(_select(x.dtype), "column", n, (keys, x, order, np.int64(width), np.int64(at), np.int64(n)))
        _, places = ordered(keys, n, values=False)
        then = runtime.empty((n,), np.int32)
        runtime.each(_PLACES, "compose", n, (then, order, places, np.int64(n)))
        order = then
    if order is None:  # rows without elements are all equal
        return runtime.upload(np.arange(n, dtype=np.int32))
    return order


def _groups(x: DeviceArray, *, numbers: bool, sort: bool) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """Of the different rows of x [n, width]: where each first stands, which one each row is, and how many are equal."""
    runtime, (n, width) = x.runtime, x.shape
    order = _sorted_rows(x)
    heads = runtime.empty((1, n), np.int32)
    arguments = (heads, x, order, np.int64(width), np.int32(numbers), np.int64(n))
    runtime.each(_select(x.dtype), "mark_heads", n, arguments)
    ids = scanned(heads)
    groups = last_number(ids)
    first, start, counts = (runtime.empty((groups,), np.int64) for _ in range(3))
    inverse = runtime.empty((n,), np.int64)
    runtime.each(_PLACES, "write_groups", n, (first, start, inverse, ids, order, np.int64(n)))
    runtime.each(_PLACES, "write_counts", groups, (counts, start, np.int64(n), np.int64(groups)))
    return (first, inverse, counts) if sort else _by_first_place(first, inverse, counts)


def _by_first_place(
    first: DeviceArray, inverse: DeviceArray, counts: DeviceArray
) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    """The groups in the order in which they first stand in the array."""
    runtime, n, groups = first.runtime, inverse.size, first.size
    marks = runtime.zeros((1, n), np.int32)
    runtime.each(_PLACES, "mark_first", groups, (marks, first, np.int64(groups)))
    ranks = scanned(marks)
    placed, often = (runtime.empty((groups,), np.int64) for _ in range(2))
    runtime.each(_PLACES, "renumber_groups", groups, (placed, often, first, counts, ranks, np.int64(groups)))
    then = runtime.empty((n,), np.int64)
    runtime.each(_PLACES, "renumber", n, (then, inverse, first, ranks, np.int64(n)))
    return placed, then, often


def _unique(problem: Problem, x: DeviceArray) -> tuple[DeviceArray, ...]:
    axis, runtime = problem.attrs["axis"], x.runtime
    axis = axis if axis is None else axis % x.ndim
    perm = () if axis is None else (axis, *(a for a in range(x.ndim) if a != axis))
    rows = x.reshape((x.size, 1)) if axis is None else transposed(x, perm)
    shape = rows.shape[1:]
    if not rows.shape[0]:
        empty = [runtime.empty((0,), np.int64) for _ in range(3)]
        return (x if axis is not None else x.reshape((0,)), *empty)
    rows = rows.reshape((rows.shape[0], math.prod(shape)))
    first, inverse, counts = _groups(rows, numbers=axis is None, sort=problem.attrs["sort"])
    width = rows.shape[1]
    y = take(rows, (first.size, *shape), first, plain_rows(first.size, width), None, None)
    if axis is None:
        return y.reshape((first.size,)), first, inverse, counts
    back = tuple(perm.index(a) for a in range(x.ndim))
    return transposed(y, back), first, inverse, counts


# ---- boxes
def _front(x: DeviceArray, count: int) -> DeviceArray:
    """The first elements of an array with one axis, in its memory."""
    return DeviceArray(x.runtime, x.owner, x.address if count else 0, (count,), x.dtype)


def _nms(problem: Problem, boxes: DeviceArray, scores: DeviceArray) -> DeviceArray:
    runtime, n = boxes.runtime, boxes.shape[0]
    limit = n if problem.attrs["limit"] is None else min(problem.attrs["limit"], n)
    if not limit:
        return runtime.empty((0,), np.int32)
    _, order = ordered(scores.reshape((1, n)), n, descending=True, values=False)
    words = -(-n // 64)
    masks, removed = runtime.empty((n, words), np.uint64), runtime.zeros((words,), np.uint64)
    kept, found = runtime.empty((limit,), np.int32), runtime.empty((1,), np.int32)
    code, sizes = program("suppression.cu", TYPE=type_name(boxes.dtype)), (np.int32(n), np.int32(words))
    threshold = boxes.dtype.type(problem.attrs["threshold"])
    runtime.launch(code, "exclusions", (words, words), 64, (masks, boxes, order, threshold, *sizes))
    runtime.launch(code, "keep", 1, 256, (kept, found, removed, masks, order, np.int32(limit), *sizes))
    return _front(kept, int(found.numpy()[0]))


def _batched_nms(problem: Problem, boxes: DeviceArray, scores: DeviceArray, *bounds: DeviceArray) -> DeviceArray:
    runtime, (batch, classes, n) = boxes.runtime, scores.shape
    limit, overlap, least = (bound.numpy().reshape(-1)[0] for bound in bounds)
    most, rows = min(int(limit), n), batch * classes
    if most <= 0 or not rows:
        return runtime.empty((0, 3), np.int64)
    _, order = ordered(scores.reshape((rows, n)), n, descending=True, values=False)
    kept, counts = runtime.empty((rows, most), np.int32), runtime.empty((1, rows), np.int32)
    dead = runtime.zeros((rows, n), np.uint8)
    sizes = (np.int32(classes), np.int32(n), np.int32(most))
    values = (np.float64(overlap), np.float64(least), np.int32(problem.attrs["center"]))
    code = program("suppression.cu", TYPE=type_name(boxes.dtype))
    runtime.launch(code, "keep_rows", rows, 256, (kept, counts, dead, boxes, scores, order, *sizes, *values))
    sums = scanned(counts)
    out = runtime.empty((last_number(sums), 3), np.int64)
    if out.size:
        arguments = (out, kept, sums, np.int32(classes), np.int32(most), np.int64(rows * most))
        runtime.each(code, "write_kept", rows * most, arguments)
    return out


# ---- which problems
def _few(problem: Problem) -> str | None:
    """Refuses arrays whose places take more than 32 bits."""
    size = problem.inputs[0].size
    return untyped(problem) if size < _LIMIT else f"{counted(size, 'element')}; fewer than {_LIMIT} are taken"


def _summed(problem: Problem) -> str | None:
    """Leaves halves to float32, which the dispatch converts to: sums are not rounded on their way."""
    spec = problem.inputs[0]
    if storage_of(spec.dtype).itemsize == 2 and storage_of(spec.dtype).kind not in "iu":
        return f"{spec.dtype} is converted to float32"
    return untyped(problem) if max(spec.shape, default=0) < _LIMIT else f"an axis of {spec.shape} is too long"


def _boxes(problem: Problem) -> str | None:
    """Refuses boxes and scores that are not of one type, float32 or float64; boxes of any number."""
    dtypes = {spec.dtype for spec in problem.inputs[:2]}
    if len(dtypes) != 1 or dtypes.pop() not in (np.float32, np.float64):
        return "expected boxes and scores of one type, float32 or float64"
    return None


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    yield _PLACES
    for dtype in TYPES:
        yield _select(dtype)
    for name in ("float", "double"):
        yield program("suppression.cu", TYPE=name)


def _kernel(name: str, run: Callable[..., Any], **more: Any) -> tuple[Kernel, ...]:
    return (EagerKernel(f"cuda_{name}", run, **more),)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "topk": _kernel("topk", _topk, usable=_few),
    "cumsum": _kernel("cumsum", _cumsum, usable=_summed),
    "numbers": _kernel("numbers", _numbers),
    "nonzero": _kernel("nonzero", _nonzero, usable=_few),
    "unique": _kernel("unique", _unique, usable=_few),
    "nms": _kernel("nms", _nms, usable=_boxes),
    "batched_nms": _kernel("batched_nms", _batched_nms, usable=_boxes),
}
