"""Arrays joined along an axis, and cut: up to eight parts in one launch."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import storage_of
from megengine.kernels.cuda import walks
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import Program, program
from megengine.kernels.cuda.walks import BLOCK, Move, divisors, filled, grid_of, move
from megengine.kernels.problem import Problem

_AT_ONCE = 8
_PARTS = np.dtype(
    [
        *((name, "u4", walks.MOST_AXES) for name in ("size", "magic", "shift")),
        ("starts", "u4", _AT_ONCE),
        ("whole", "u4"),
        ("first", "u4"),
    ]
)


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that one launch moves: their places among all, and what it takes beside the arrays."""

    places: tuple[int, ...]
    code: Program
    grid: int
    described: tuple[np.ndarray, np.uint32]

    def padded(self, arrays: Sequence[DeviceArray]) -> list[DeviceArray | None]:
        """The arrays of the parts, and None up to eight."""
        chosen = [arrays[place] for place in self.places]
        return [*chosen, *[None] * (_AT_ONCE - len(chosen))]


@dataclass(frozen=True, slots=True)
class Parts:
    """How the parts of a problem are moved: in groups, or one by one where addresses or sizes do not fit."""

    unit: int
    groups: tuple[Group, ...]
    singly: tuple[Move, ...]


def _groups(rows: int, widths: Sequence[int], size: int) -> Iterator[Group]:
    """Launches over parts of `widths` units in each row."""
    starts = [0, *itertools.accumulate(widths)]
    there = [place for place, width in enumerate(widths) if width]
    for at in range(0, len(there), _AT_ONCE):
        places = tuple(there[at : at + _AT_ONCE])
        first, end = starts[places[0]], starts[places[-1] + 1]
        own = [starts[place] - first for place in places]
        values = {
            **divisors([end - first]),
            "starts": own + [end - first] * (_AT_ONCE - len(own)),
            "whole": starts[-1],
            "first": first,
        }
        count = rows * (end - first)
        described = filled(_PARTS, values), np.uint32(count)
        yield Group(places, program("parts.cu", SIZE=size), grid_of(count), described)


@functools.lru_cache(maxsize=4096)
def _parts(problem: Problem) -> Parts:
    joining = problem.op == "concat"
    spec = (problem.outputs if joining else problem.inputs)[0]
    shape, itemsize = spec.shape, storage_of(spec.dtype).itemsize
    axis = problem.attrs["axis"] % len(shape)
    lengths = [s.shape[axis] for s in problem.inputs] if joining else problem.attrs["sections"]
    rows, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    widths = [length * inner for length in lengths]
    singly = []
    for start, width in zip(itertools.accumulate(widths, initial=0), widths, strict=False):
        apart, own, firsts = (sum(widths), 1), (width, 1), (0, start)
        singly.append(
            move((rows, width), own, apart, itemsize, firsts)
            if joining
            else move((rows, width), apart, own, itemsize, firsts[::-1])
        )
    if rows * sum(widths) >= walks.LIMIT or sum(w > 0 for w in widths) < 2 or not rows:
        return Parts(1, (), tuple(singly))
    factor = math.gcd(16 // itemsize, *widths)
    units = [width // factor for width in widths]
    return Parts(itemsize * factor, tuple(_groups(rows, units, itemsize * factor)), tuple(singly))


def _fits(made: Parts, one: DeviceArray, others: Sequence[DeviceArray]) -> bool:
    """Whether the parts are moved in groups: all addresses are those of units."""
    together = one.address
    for array in others:
        together |= array.address
    return bool(made.groups) and together % made.unit == 0


def concat(problem: Problem, *xs: DeviceArray) -> DeviceArray:
    """Arrays one after the other along an axis."""
    runtime, made = xs[0].runtime, _parts(problem)
    out = runtime.empty(problem.outputs[0].shape, xs[0].dtype)
    if _fits(made, out, xs):
        for group in made.groups:
            arguments = (out, *group.padded(xs), *group.described)
            runtime.launch(group.code, "join_parts", group.grid, BLOCK, arguments)
        return out
    for copy, x in zip(made.singly, xs, strict=True):
        copy(out, x)
    return out


def split(problem: Problem, x: DeviceArray) -> tuple[DeviceArray, ...]:
    """The parts of an array along an axis."""
    runtime, made = x.runtime, _parts(problem)
    outs = tuple(runtime.empty(spec.shape, x.dtype) for spec in problem.outputs)
    if _fits(made, x, outs):
        for group in made.groups:
            arguments = (x, *group.padded(outs), *group.described)
            runtime.launch(group.code, "cut_parts", group.grid, BLOCK, arguments)
        return outs
    for copy, out in zip(made.singly, outs, strict=True):
        copy(out, x)
    return outs


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    for size in (1, 2, 4, 8, 16):
        yield program("parts.cu", SIZE=size)
