"""Copies between strided places as launches: axes merged, elements joined to wide units, tiles for transposes.

Distances are in elements where functions take them, in units where kernels do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import Program, program

MOST_AXES = 12  # of a kernel (units.cuh)
LIMIT = 1 << 31  # units of one launch: places are found by 32-bit division
TILED = 8  # the shortest axes that are moved in tiles
BLOCK = 256
BLOCKS = 1 << 30  # of kernels whose blocks go on with the next tile or row
_WIDEST = 16
_LENGTHS = [(name, "u4", MOST_AXES) for name in ("size", "magic", "shift")]
_PLACES = [(name, "i8", MOST_AXES) for name in ("source", "target")]
_WALK = np.dtype([("axes", "i4"), *_LENGTHS, *_PLACES, ("first_from", "i8"), ("first_to", "i8")], align=True)
_TILES = np.dtype(
    [
        ("tiles", "i8"),
        *((name, "u4") for name in ("rows", "columns", "row_tiles", "column_tiles")),
        ("column_from", "i8"),
        ("row_to", "i8"),
        ("axes", "i4"),
        _LENGTHS[0],
        *_PLACES,
        ("first_from", "i8"),
        ("first_to", "i8"),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a copy: its length, and the distances of its elements in the source and in the result."""

    size: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch of a kernel that takes the result, the operands, and then `arguments`."""

    program: Program
    kernel: str
    grid: int
    block: int | tuple[int, int]
    arguments: tuple[Any, ...]

    def __call__(self, out: DeviceArray, *operands: DeviceArray) -> None:
        """Launch it."""
        out.runtime.launch(self.program, self.kernel, self.grid, self.block, (out, *operands, *self.arguments))


@dataclass(frozen=True, slots=True)
class Move:
    """Launches that copy units of a width; arrays that do not begin at a multiple of it are copied by `narrow`."""

    unit: int
    launches: tuple[Launch, ...]
    narrow: Callable[[], Move]

    def __call__(self, out: DeviceArray, x: DeviceArray) -> None:
        """Copy x to out."""
        if (out.address | x.address) % self.unit:
            self.narrow()(out, x)
            return
        for launch in self.launches:
            launch(out, x)


def grid_of(count: int) -> int:
    """Blocks for a number of units."""
    return min(-(-count // BLOCK), 1 << 16)


def divisors(sizes: Sequence[int]) -> dict[str, Any]:
    """The fields of the kernels' `Lengths`: division by multiplication, exact below 2**31 (Granlund, Montgomery)."""
    shifts = [(n - 1).bit_length() for n in sizes]
    magic = [((1 << 32) * ((1 << s) - n) // n) + 1 for n, s in zip(sizes, shifts, strict=True)]
    return {"size": list(sizes), "magic": magic, "shift": shifts}


def filled(dtype: np.dtype, values: dict[str, Any]) -> np.ndarray:
    """A structure for a kernel's argument; axes that do not exist are zero."""
    made = np.zeros((), dtype)
    for name, value in values.items():
        if isinstance(value, list):
            made[name][: len(value)] = value
        else:
            made[name] = value
    return made


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The same places with as few axes as possible; those of length 1 are left out."""
    found: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if found and found[-1].source == axis.source * axis.size and found[-1].target == axis.target * axis.size:
            found[-1] = Axis(found[-1].size * axis.size, axis.source, axis.target)
        else:
            found.append(axis)
    return found


def widened(axes: list[Axis], firsts: tuple[int, int], itemsize: int, widest: int) -> tuple[list[Axis], int]:
    """The axes in units of as many elements side by side as divide everything, at most `widest` bytes; how many."""
    k = next((k for k, axis in enumerate(axes) if axis.source == axis.target == 1), None)
    if k is None:
        return axes, 1
    others = [n for i, axis in enumerate(axes) if i != k for n in (axis.source, axis.target)]
    factor = max(widest // itemsize, 1)
    while math.gcd(factor, axes[k].size, *others, *firsts) != factor:
        factor //= 2
    units = [Axis(a.size, a.source // factor, a.target // factor) for a in axes]
    units[k] = Axis(axes[k].size // factor, 1, 1)
    return merged(units), factor


def _tiled(axes: list[Axis], firsts: tuple[int, int], size: int, widest: int) -> tuple[Launch, int] | None:
    """The copy in tiles, if what lies side by side in the source and in the result are two long axes; units at once."""
    row = next((k for k, a in enumerate(axes) if a.source == 1 and a.size >= TILED), None)
    column = next((k for k, a in enumerate(axes) if a.target == 1 and a.size >= TILED), None)
    if row is None or column is None or row == column or len(axes) > MOST_AXES + 2:
        return None
    if max(a.size for a in axes) >= LIMIT:
        return None
    rows, columns = axes[row], axes[column]
    others = [a for k, a in enumerate(axes) if k not in (row, column)]
    distances = [columns.source, rows.target, *(n for a in others for n in (a.source, a.target)), *firsts]
    pack = max(min(widest, 4) // size, 1)
    if math.gcd(pack, rows.size, columns.size, *distances) != pack:
        pack = 1
    tall, wide = -(-rows.size // (pack * 32)), -(-columns.size // (pack * 32))
    count = tall * wide * math.prod(a.size for a in others)
    values = {
        "tiles": count,
        "rows": rows.size // pack,
        "columns": columns.size // pack,
        "row_tiles": tall,
        "column_tiles": wide,
        "column_from": columns.source // pack,
        "row_to": rows.target // pack,
        "axes": len(others),
        "size": [a.size for a in others],
        "source": [a.source // pack for a in others],
        "target": [a.target // pack for a in others],
        "first_from": firsts[0] // pack,
        "first_to": firsts[1] // pack,
    }
    code = program("tiles.cu", SIZE=size, PACK=pack)
    return Launch(code, "move_tiles", min(count, BLOCKS), (32, 8), (filled(_TILES, values),)), pack


def _walked(axes: list[Axis], firsts: tuple[int, int], size: int) -> Iterator[Launch]:
    """The copy unit by unit: one launch, or several where there are too many units or axes."""
    count = math.prod(a.size for a in axes)
    if count < LIMIT and len(axes) <= MOST_AXES:
        kernel = f"move_{max(len(axes), 1)}" if len(axes) <= 4 else "move_many"
        values = {
            "axes": len(axes),
            **divisors([a.size for a in axes]),
            "source": [a.source for a in axes],
            "target": [a.target for a in axes],
            "first_from": firsts[0],
            "first_to": firsts[1],
        }
        arguments = (filled(_WALK, values), np.uint32(count))
        yield Launch(program("moves.cu", SIZE=size), kernel, grid_of(count), BLOCK, arguments)
        return
    outer, inner = axes[0], axes[1:]
    step = max(min((LIMIT - 1) // (count // outer.size), outer.size), 1) if len(axes) <= MOST_AXES else 1
    for at in range(0, outer.size, step):
        part = [Axis(min(step, outer.size - at), outer.source, outer.target), *inner]
        yield from _walked(merged(part), (firsts[0] + at * outer.source, firsts[1] + at * outer.target), size)


def _nothing() -> Move:
    return Move(1, (), _nothing)


@functools.lru_cache(maxsize=4096)
def move(
    shape: tuple[int, ...],
    source: tuple[int, ...],
    target: tuple[int, ...],
    itemsize: int,
    firsts: tuple[int, int] = (0, 0),
    widest: int = _WIDEST,
) -> Move:
    """The copy of `shape` elements of `itemsize` bytes.

    Args:
        source, target: distances along each axis, in elements; negative and 0 as well.
        firsts: the places of the first elements of both.
        widest: bytes of the widest unit.
    """
    if 0 in shape:
        return Move(1, (), _nothing)
    axes = merged([Axis(*parts) for parts in zip(shape, source, target, strict=True)])
    axes, factor = widened(axes, firsts, itemsize, widest)
    firsts_in_units = (firsts[0] // factor, firsts[1] // factor)
    size = itemsize * factor
    narrow = functools.partial(move, shape, source, target, itemsize, firsts, itemsize)
    tiled = _tiled(axes, firsts_in_units, size, widest)
    if tiled is not None:
        launch, pack = tiled
        return Move(size * pack, (launch,), narrow)
    return Move(size, tuple(_walked(axes, firsts_in_units, size)), narrow)
