"""Sorts and running sums on the device, for the ops of several families: `ordered`, `scanned`, `flagged_places`."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from megengine.kernels.cuda import walks
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.moves import transposed
from megengine.kernels.cuda.sources import TYPES, Program, program, type_name

SHORT = (256, 2048)  # lengths of rows that one block sorts
FEW = 256  # so many first ones of long rows are found by sorting chunks
_TILE, _CHUNK = 2048, 1024  # of radix.cu and scans.cu
_FEW = 64  # a line of this length is summed by one thread
_MANY = 4096  # so many lines are, one thread each, where they do not lie side by side
_SUMS = {"b": "int", "i": "int", "u": "unsigned", "f": "float"}


def _bits(dtype: np.dtype) -> int:
    return 64 if dtype.itemsize == 8 else 32


def ordered(
    x: DeviceArray, kept: int, *, descending: bool = False, values: bool = True, bits: int | None = None
) -> tuple[DeviceArray | None, DeviceArray]:
    """The first `kept` elements of each row of x [rows, length] in stable order, and their places (int32).

    NaN comes last. Of integers that are not negative and have at most `bits` bits, only those are looked at.
    """
    rows, length = x.shape
    runtime = x.runtime
    order = runtime.empty((rows, kept), np.int32)
    picked = runtime.empty((rows, kept), x.dtype) if values else None
    if not order.size:
        return picked, order
    if length > SHORT[-1] and kept > FEW:
        _radix(x, picked, order, descending, bits)
        return picked, order
    given = None
    while (length := x.shape[1]) > SHORT[-1]:  # the first ones of all are among the first ones of chunks
        chunks, rest = divmod(length - 1, SHORT[-1])
        total = chunks * kept + min(kept, rest + 1)
        best = runtime.empty((rows, total), x.dtype), runtime.empty((rows, total), np.int32)
        _sort_chunks(x, given, best, kept, SHORT[-1], descending)
        x, given = best
    _sort_chunks(x, given, (picked, order), kept, length, descending)
    return picked, order


def _sort_chunks(
    x: DeviceArray,
    given: DeviceArray | None,
    best: tuple[DeviceArray | None, DeviceArray],
    kept: int,
    chunk: int,
    descending: bool,
) -> None:
    """The first `kept` of each chunk of the rows of x, one after the other, into `best`: elements and places."""
    rows, length = x.shape
    chunks, padded = -(-length // chunk), max(2, 1 << (chunk - 1).bit_length())
    capacity = next(n for n in SHORT if padded <= n)
    sizes = [np.int32(n) for n in (rows, length, chunks, chunk, padded, kept, best[1].shape[1], descending)]
    code = program("short_rows.cu", TYPE=type_name(x.dtype), CAPACITY=capacity)
    block = min(512, max(32, padded // 2))
    x.runtime.launch(code, "sort_rows", min(rows * chunks, walks.BLOCKS), block, (*best, x, given, *sizes))


def _radix(
    x: DeviceArray, picked: DeviceArray | None, kept_order: DeviceArray, descending: bool, bits: int | None
) -> None:
    """Sort long rows, 8 bits of the keys at a time, from the lowest."""
    runtime, (rows, length), kept = x.runtime, x.shape, kept_order.shape[1]
    code = program("radix.cu", TYPE=type_name(x.dtype))
    dtype = np.dtype(f"u{_bits(x.dtype) // 8}")
    keys, other = (runtime.empty((rows, length), dtype) for _ in range(2))
    orders = [runtime.empty((rows, length), np.int32) for _ in range(2)]
    runtime.each(code, "make_keys", x.size, (keys, x, np.int32(descending), np.int64(x.size)))
    tiles = -(-length // _TILE)
    order = None
    for shift in range(0, _bits(x.dtype) if bits is None else bits, 8):
        counts = runtime.empty((rows, 256 * tiles), np.int32)
        sizes = (np.int32(length), np.int32(tiles), np.int32(shift))
        runtime.launch(code, "count_digits", rows * tiles, 256, (counts, keys, *sizes))
        sums = scanned(counts)
        runtime.launch(code, "place_digits", rows * tiles, 256, (other, orders[0], keys, order, sums, *sizes))
        keys, other, order, orders = other, keys, orders[0], orders[::-1]
    count = kept_order.size
    arguments = (picked, kept_order, x, order, np.int64(length), np.int64(kept), np.int64(count))
    runtime.each(code, "pick", count, arguments)


def _scan_program(dtype: np.dtype) -> Program:
    wide = dtype.itemsize == 8
    sums = type_name(dtype) if wide else _SUMS[dtype.kind]
    return program("scans.cu", TYPE=type_name(dtype), SUM=sums)


_SUM_DTYPES = {"b": np.int32, "i": np.int32, "u": np.uint32, "f": np.float32}


def scanned(x: DeviceArray, *, reverse: bool = False) -> DeviceArray:
    """Sums of the elements up to each, along the rows of x [rows, length]; from the end with `reverse`."""
    runtime, (rows, length) = x.runtime, x.shape
    out = runtime.empty(x.shape, x.dtype)
    if not out.size:
        return out
    code, backward = _scan_program(x.dtype), np.int32(reverse)
    if length <= _FEW:
        runtime.each(code, "scan_lines", rows, (out, x, np.int64(length), np.int64(1), backward, np.int64(rows)))
        return out
    chunks = -(-length // _CHUNK)
    totals = None
    if chunks > 1:
        totals = runtime.empty((rows, chunks), x.dtype if x.dtype.itemsize == 8 else _SUM_DTYPES[x.dtype.kind])
    blocks = rows * chunks
    arguments = (out, totals, x, np.int64(length), np.int32(chunks), backward, np.int64(blocks))
    runtime.launch(code, "scan_chunks", min(blocks, walks.BLOCKS), 256, arguments)
    if totals is not None:
        before = scanned(totals)
        runtime.each(
            code, "add_totals", x.size, (out, before, np.int64(length), np.int32(chunks), backward, np.int64(x.size))
        )
    return out


def scanned_along(x: DeviceArray, axis: int, *, reverse: bool = False) -> DeviceArray:
    """Sums of the elements up to each, along an axis of x."""
    length, inner = x.shape[axis], math.prod(x.shape[axis + 1 :])
    outer = math.prod(x.shape[:axis])
    if not x.size:
        return x.runtime.empty(x.shape, x.dtype)
    if inner == 1:
        return scanned(x.reshape((outer, length)), reverse=reverse).reshape(x.shape)
    if length <= _FEW or outer * inner >= _MANY:
        out = x.runtime.empty(x.shape, x.dtype)
        lines = outer * inner
        sizes = (np.int64(length), np.int64(inner), np.int32(reverse), np.int64(lines))
        x.runtime.each(_scan_program(x.dtype), "scan_lines", lines, (out, x, *sizes))
        return out
    rows = transposed(x.reshape((outer, length, inner)), (0, 2, 1))
    sums = scanned(rows.reshape((outer * inner, length)), reverse=reverse)
    return transposed(sums.reshape((outer, inner, length)), (0, 2, 1)).reshape(x.shape)


def last_number(x: DeviceArray) -> int:
    """The last element of an array of integers; waits for it."""
    size = x.dtype.itemsize
    last = DeviceArray(x.runtime, x.owner, x.address + (x.size - 1) * size, (1,), x.dtype)
    return int(last.numpy()[0])


def programs() -> Iterator[Program]:
    """Every program that these functions launch."""
    for dtype, name in TYPES.items():
        for capacity in SHORT:
            yield program("short_rows.cu", TYPE=name, CAPACITY=capacity)
        yield program("radix.cu", TYPE=name)
        if dtype.itemsize != 2 or dtype.kind in "iu":
            yield _scan_program(dtype)
