"""Arrays with a border as launches: constant, the nearest element, or mirrored."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megengine.kernels.cuda.sources import program
from megengine.kernels.cuda.walks import BLOCK, LIMIT, MOST_AXES, Launch, Move, divisors, filled, grid_of

_LENGTHS = [(name, "u4", MOST_AXES) for name in ("size", "magic", "shift")]
_BORDER = np.dtype(
    [
        ("axes", "i4"),
        *_LENGTHS,
        ("before", "i4", MOST_AXES),
        ("length", "i4", MOST_AXES),
        ("source", "i8", MOST_AXES),
        ("first_to", "i8"),
    ],
    align=True,
)
_WIDEST = 16


@dataclass(frozen=True, slots=True)
class Side:
    """An axis of the result: its length, the elements before the operand's, their number and their distance."""

    size: int
    before: int
    length: int
    source: int

    @property
    def bare(self) -> bool:
        """Whether it has no border."""
        return self.before == 0 and self.size == self.length


class Padding(Move):
    """Launches that make an array with a border: they write all of it."""

    __slots__ = ()


def _merged(sides: list[Side], constant: bool) -> list[Side]:
    """Fewer axes: one without a border joins the one before, whose border grows with it if it is constant."""
    found: list[Side] = []
    for side in sides:
        last = found[-1] if found else None
        if last and side.bare and (constant or last.bare) and last.size * side.size < LIMIT:
            n = side.size
            found[-1] = Side(last.size * n, last.before * n, last.length * n, side.source)
        else:
            found.append(side)
    return found


def _in_units(sides: list[Side], constant: bool, itemsize: int, widest: int) -> tuple[list[Side], int]:
    """The axes in units of as many elements as divide the last axis with its border."""
    last = sides[-1]
    if not (constant or last.bare):
        return sides, 1
    factor = max(widest // itemsize, 1)
    while math.gcd(factor, last.size, last.before, last.length, *(s.source for s in sides[:-1])) != factor:
        factor //= 2
    inner = Side(last.size // factor, last.before // factor, last.length // factor, 1)
    return [*(Side(s.size, s.before, s.length, s.source // factor) for s in sides[:-1]), inner], factor


def _launches(sides: list[Side], mode: str, fill: bytes, first_to: int = 0) -> Iterator[Launch]:
    count = math.prod(s.size for s in sides)
    outer, inner = sides[0], sides[1:]
    if count >= LIMIT:
        step = max((LIMIT - 1) // (count // outer.size), 1)
        for at in range(0, outer.size, step):
            part = Side(min(step, outer.size - at), outer.before - at, outer.length, outer.source)
            yield from _launches([part, *inner], mode, fill, first_to + at * (count // outer.size))
        return
    values = {
        "axes": len(sides),
        **divisors([s.size for s in sides]),
        "before": [s.before for s in sides],
        "length": [s.length for s in sides],
        "source": [s.source for s in sides],
        "first_to": first_to,
    }
    size = len(fill)
    unit = np.frombuffer(fill, np.dtype(f"u{size}" if size < 16 else np.dtype((np.void, 16))))
    arguments = (filled(_BORDER, values), unit, np.uint32(count))
    yield Launch(program("moves.cu", SIZE=size), f"pad_{mode}", grid_of(count), BLOCK, arguments)


@functools.lru_cache(maxsize=4096)
def padding(
    shape: tuple[int, ...], widths: tuple[tuple[int, int], ...], mode: str, fill: bytes, widest: int = _WIDEST
) -> Padding:
    """A border of `widths` (before, after) around an array: mode constant (`fill`, an element), edge or reflect."""
    constant, itemsize = mode == "constant", len(fill)
    apart = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    sides = [Side(n + a + b, a, n, d) for n, (a, b), d in zip(shape, widths, apart, strict=True)] or [Side(1, 0, 1, 1)]
    narrow = functools.partial(padding, shape, widths, mode, fill, itemsize)
    if math.prod(s.size for s in sides) == 0:
        return Padding(1, (), narrow)
    sides, factor = _in_units(_merged(sides, constant), constant, itemsize, widest)
    assert len(sides) <= MOST_AXES, sides
    return Padding(itemsize * factor, tuple(_launches(sides, mode, fill * factor)), narrow)
