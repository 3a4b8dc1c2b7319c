"""Arrays indexed by arrays, as launches: the axes of an index pattern, and rows that are taken, put or combined."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import IndexOutOfRangeError
from megengine.core.sizes import slice_bounds
from megengine.core.text import counted
from megengine.kernels.cuda import walks
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.ordering import ordered
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.cuda.walks import BLOCK, MOST_AXES, Axis, divisors, filled, grid_of, merged

Ints = tuple[int, ...]
_NO_LIMIT = np.int64(1 << 62)  # the length of an axis for places that were checked
_ROWS = np.dtype(
    [
        ("axes", "i4"),
        ("which", "i4"),
        *((name, "u4", MOST_AXES) for name in ("size", "magic", "shift")),
        ("whole", "i8", MOST_AXES),
        ("part", "i8", MOST_AXES),
        *((name, "i8") for name in ("first_whole", "first_part", "first_index", "step")),
    ],
    align=True,
)


Launches = tuple[int, tuple[tuple[np.ndarray, int], ...]]  # bytes of a unit; structure and units of each launch


@dataclass(frozen=True, slots=True)
class Rows:
    """Axes of an indexed array (their `source`) and of the rows taken from it (`target`), one of them the indices'."""

    before: tuple[Axis, ...]
    index: Axis  # its source is unused
    behind: tuple[Axis, ...]
    step: int  # in the indexed array, from one index to the next
    first: int = 0  # place in the indexed array
    _made: dict[tuple[int, int], Launches] = field(default_factory=dict, compare=False, repr=False)

    def launches(self, itemsize: int, widest: int = 16) -> Launches:
        """Bytes of a unit, and the structure and number of units of each launch."""
        made = self._made.get((itemsize, widest))
        if made is None:
            made = self._made[itemsize, widest] = _launches(self, itemsize, widest)
        return made


def _launches(rows: Rows, itemsize: int, widest: int) -> Launches:
    before, behind, factor = merged(rows.before), merged(rows.behind), 1
    if behind and behind[-1].source == behind[-1].target == 1:
        numbers = [n for a in (*before, rows.index, *behind[:-1]) for n in (a.source, a.target)]
        factor = max(widest // itemsize, 1)
        while math.gcd(factor, behind[-1].size, rows.step, rows.first, *numbers) != factor:
            factor //= 2
        behind = [*behind[:-1], Axis(behind[-1].size // factor, factor, factor)]
    axes = [*before, rows.index, *(a for a in behind if a.size > 1)]
    if len(axes) > MOST_AXES:
        raise AssertionError(f"{counted(len(axes), 'axis')} of rows; at most {MOST_AXES}")
    return itemsize * factor, tuple(_split(axes, len(before), rows, factor))


def _split(axes: list[Axis], which: int, rows: Rows, factor: int) -> Iterator[tuple[np.ndarray, int]]:
    """The structures: one, or several where there are too many units for one launch."""
    count = math.prod(a.size for a in axes)
    outer = axes[0].size if count else 0
    step = outer if count < walks.LIMIT else max((walks.LIMIT - 1) // (count // outer), 1)
    for at in range(0, outer, max(step, 1)):
        sizes = [min(step, outer - at), *(a.size for a in axes[1:])]
        values = {
            "axes": len(axes),
            "which": which,
            **divisors(sizes),
            "whole": [a.source // factor for a in axes],
            "part": [a.target // factor for a in axes],
            "first_whole": (rows.first + (at * axes[0].source if which else 0)) // factor,
            "first_part": at * axes[0].target // factor,
            "first_index": 0 if which else at,
            "step": rows.step // factor,
        }
        yield filled(_ROWS, values), math.prod(sizes)


@functools.lru_cache(maxsize=4096)
def plain_rows(count: int, width: int) -> Rows:
    """Whole rows of `width` elements of a dense array, `count` of them."""
    return Rows((), Axis(count, 0, width), (Axis(width, 1, 1),), width)


@dataclass(frozen=True, slots=True)
class Indexed:
    """An index pattern on a shape: which axes are indexed, and the rows that it takes."""

    axes: Ints  # the indexed ones
    lengths: Ints
    distances: Ints  # in the indexed array, in elements
    adjacent: bool  # indexed axes that are long stand side by side: the place follows from one number
    indices: Ints  # the shape of the index arrays together
    shape: Ints  # of what is taken
    place: int  # the first axis of it that comes from indices
    before: tuple[tuple[int, int], ...]  # lengths and distances of the axes that are sliced
    behind: tuple[tuple[int, int], ...]
    first: int

    @property
    def count(self) -> int:
        """The number of indices."""
        return math.prod(self.indices)

    @property
    def step(self) -> int:
        """Elements between the places of two successive codes."""
        return self.distances[-1] if self.adjacent else 1

    def rows(self, steps: Ints) -> Rows | None:
        """The rows, where elements of what is taken are `steps` apart; None if those of the indices are not even."""
        ends = self.place + len(self.indices)
        of_index = merged([Axis(n, 0, s) for n, s in zip(self.indices, steps[self.place : ends], strict=True)])
        joined = of_index or [Axis(1, 0, 0)]
        if len(joined) > 1:
            return None

        def sliced(pairs: tuple[tuple[int, int], ...], apart: Ints) -> tuple[Axis, ...]:
            return tuple(Axis(n, d, s) for (n, d), s in zip(pairs, apart, strict=True))

        before, behind = sliced(self.before, steps[: self.place]), sliced(self.behind, steps[ends:])
        return Rows(before, joined[0], behind, self.step, self.first)


@functools.lru_cache(maxsize=4096)
def indexed(shape: Ints, pattern: tuple[Any, ...], index_shapes: tuple[Ints, ...]) -> Indexed:
    """The pattern on an array of that shape: "i" for an indexed axis, (start, stop, step) for a range."""
    apart = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    axes = tuple(axis for axis, part in enumerate(pattern) if part == "i")
    side_by_side = axes == tuple(range(axes[0], axes[-1] + 1))
    first, sliced = 0, []
    for axis, part in enumerate(pattern):
        if part != "i":
            first_one, end, by = part
            start, stop, step = slice_bounds(first_one, end, by, shape[axis])
            length = len(range(start, stop, step))
            first += start * apart[axis] if length else 0
            sliced.append((length, step * apart[axis]))
    place = axes[0] if side_by_side else 0
    indices = np.broadcast_shapes(*index_shapes)
    before, behind = tuple(sliced[:place]), tuple(sliced[place:])
    return Indexed(
        axes,
        tuple(shape[axis] for axis in axes),
        tuple(apart[axis] for axis in axes),
        side_by_side,
        indices,
        (*(n for n, _ in before), *indices, *(n for n, _ in behind)),
        place,
        before,
        behind,
        first,
    )


def worst(op: str, axis: int, length: int) -> Callable[[int], Exception]:
    """The error of an index, from the number that a kernel leaves."""

    def error(number: int) -> Exception:
        index = number + 1 - (1 << 30) if number + 1 >= 1 << 30 else -(number + 1)
        return IndexOutOfRangeError(f"{op}: index {index} is out of range for axis {axis} of length {length}")

    return error


INT32, INT64 = np.dtype(np.int32), np.dtype(np.int64)


@functools.cache
def index_program(size: int, dtype: np.dtype = INT64) -> Program:
    """The program that takes units of a size at indices of a dtype, int32 or int64."""
    return program("indexing.cu", SIZE=size, INDEX=type_name(dtype))


@functools.cache
def combine_program(dtype: np.dtype, size: int) -> Program:
    """The program that combines elements of a dtype in units of a size."""
    return program("combining.cu", TYPE=type_name(dtype), PACK=size // dtype.itemsize)


def _unit(itemsize: int, rows: Rows, one: DeviceArray, other: DeviceArray) -> Launches:
    """Units that divide the addresses of both arrays."""
    made = rows.launches(itemsize)
    return rows.launches(itemsize, itemsize) if (one.address | other.address) % made[0] else made


def take(
    whole: DeviceArray, shape: Ints, index: DeviceArray, rows: Rows, length: int | None, refused: DeviceArray | None
) -> DeviceArray:
    """The rows at indices along an axis of `length`, which are checked; or at places (`length` None)."""
    runtime = whole.runtime
    part = runtime.empty(shape, whole.dtype)
    if not part.size or not whole.size:
        return part
    size, launches = _unit(whole.dtype.itemsize, rows, whole, part)
    code, limit = index_program(size, index.dtype), _NO_LIMIT if length is None else np.int64(length)
    for made, count in launches:
        arguments = (part, whole, index, made, limit, refused, np.uint32(count))
        runtime.launch(code, "take", grid_of(count), BLOCK, arguments)
    return part


def put(
    whole: DeviceArray, part: DeviceArray, rows: Rows, codes: DeviceArray, places: DeviceArray, domain: int
) -> None:
    """Write rows at places; of several with one code, below `domain`, the last."""
    runtime, count = whole.runtime, codes.size
    if not count or not whole.size:
        return
    winners = None
    size, launches = _unit(whole.dtype.itemsize, rows, whole, part)
    code = index_program(size)
    if count > 1:
        winners = runtime.zeros((domain,), np.int32)
        runtime.each(code, "find_winners", count, (winners, codes, np.int64(count)))
    for made, units in launches:
        if units:
            arguments = (whole, part, codes, places, winners, made, np.uint32(units))
            runtime.launch(code, "put", grid_of(units), BLOCK, arguments)


def combine(
    how: str, whole: DeviceArray, part: DeviceArray, rows: Rows, codes: DeviceArray, places: DeviceArray, domain: int
) -> None:
    """Combine rows with what stands at their places, `how` being add, mul, max or min; in the order of the rows."""
    runtime, count = whole.runtime, codes.size
    if not count or not whole.size:
        return
    bits = max((domain - 1).bit_length(), 1)
    _, order = ordered(codes.reshape((1, count)), count, values=False, bits=bits)
    narrow, wide = whole.dtype.itemsize, 16 if whole.dtype.kind in "fV" else whole.dtype.itemsize
    size, launches = rows.launches(narrow, wide)
    if size < wide or (whole.address | part.address) % size:
        size, launches = rows.launches(narrow, narrow)
    code = combine_program(whole.dtype, size)
    for made, units in launches:
        if units:
            arguments = (whole, part, codes, places, order, made, np.int32(count), np.uint32(units))
            runtime.launch(code, f"combine_{how}", grid_of(units), BLOCK, arguments)
