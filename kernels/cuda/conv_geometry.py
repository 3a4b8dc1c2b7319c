"""Convolutions as products of windows and weights: where everything lies, as the kernels of convolution.cuh take it."""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

SPACE = 3  # axes of space in kernels; others have one place
_FARTHEST = (1 << 31) - 1
_DIVISOR = [("magic", "u4"), ("shift", "u4"), ("by", "u4")]
_DIVISORS = ("of_image", "of_plane", "of_line", "channels", "taps", "plane_taps", "line_taps")


@functools.cache
def _struct(index: str) -> np.dtype:
    """The struct Window of the kernels, whose INDEX is a type of NumPy's."""
    return np.dtype(
        [
            *((name, "i4") for name in ("groups", "taken", "given", "kept", "places", "sums", "part", "parts")),
            *((name, "i4", SPACE) for name in ("size", "stride", "first", "step")),
            *((name, _DIVISOR) for name in _DIVISORS),
            *((name, "i8") for name in ("x_group", "y_group", "w_group", "w_start", "y_start")),
            *((name, index) for name in ("x_image", "x_channel")),
            ("x_axis", index, SPACE),
            *((name, index) for name in ("y_image", "y_channel")),
            ("y_axis", index, SPACE),
            *((name, index) for name in ("w_given", "w_taken")),
            ("w_axis", index, SPACE),
        ],
        align=True,
    )


def divisor(by: int) -> tuple[int, int, int]:
    """What divides numbers below 2**31 by a multiplication: (high(n * magic) + n) >> shift."""
    by = max(by, 1)
    shift = (by - 1).bit_length()
    return ((1 << 32) * ((1 << shift) - by) // by + 1, shift, by)


Three = tuple[int, int, int]


def three(numbers: Any, filler: int) -> Three:
    """Numbers of the axes of space, with `filler` for those that are missing before them."""
    given = [int(n) for n in numbers]
    deep, high, wide = (*(filler,) * (SPACE - len(given)), *given)
    return deep, high, wide


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of [image, group, channel, z, y, x] lie: sizes (channels of a group), steps in elements."""

    batch: int
    groups: int
    channels: int
    size: Three
    image: int
    group: int
    channel: int
    axis: Three

    @property
    def places(self) -> int:
        """Places of an image."""
        return math.prod(self.size)

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        sizes = (self.batch, self.groups, self.channels, *self.size)
        ends = zip(sizes, (self.image, self.group, self.channel, *self.axis), strict=True)
        return sum((n - 1) * step for n, step in ends) + 1


def layout_of(shape: tuple[int, ...], groups: int, *, last: bool = False) -> Layout:
    """The layout of a dense array [N, C, *size]; `last`: of [N, *size, C]."""
    if last:
        n, *space, c = shape
    else:
        n, c, *space = shape
    size, each = three(space, 1), c // groups
    places = math.prod(size)
    if last:
        return Layout(n, groups, each, size, places * c, each, 1, _axis(size, c))
    return Layout(n, groups, each, size, places * c, each * places, places, _axis(size, 1))


def packed(layout: Layout, multiple: int) -> Layout:
    """The layout of the same values as [image, group, z, y, x, channel], with channels padded to a multiple."""
    each = -(-layout.channels // multiple) * multiple
    group = layout.places * each
    axis = _axis(layout.size, each)
    return Layout(layout.batch, layout.groups, each, layout.size, layout.groups * group, group, 1, axis)


def _axis(size: Three, inner: int) -> Three:
    return size[1] * size[2] * inner, size[2] * inner, inner


class Steps(NamedTuple):
    """Where weights lie, in elements: steps to the next group, given and taken channel; the first tap; along axes."""

    group: int
    given: int
    taken: int
    start: int
    axis: Three


@dataclass(frozen=True, slots=True)
class Window:
    """One launch: the places of the result from `origin` by `hop` take the taps that `first` and `step` say.

    `counts`, `taps`: how many, along each axis. `weight`: steps in weights.
    """

    x: Layout
    y: Layout
    counts: Three
    taps: Three
    stride: Three
    first: Three
    step: Three
    origin: Three
    hop: Three
    weight: Steps

    def struct(self, *, part: int = 0, parts: int = 1, kept: int = 0) -> Any:
        """The struct of the kernels; `kept` channels of a group have gradients."""
        made = np.zeros((), _struct(self.index))
        single: dict[str, Any] = {
            "groups": self.x.groups, "taken": self.x.channels, "given": self.y.channels, "kept": kept, "part": part,
            "parts": parts, "places": self.places, "sums": self.sums, "size": self.x.size, "stride": self.stride,
            "first": self.first, "step": self.step, "of_image": divisor(math.prod(self.counts)),
            "of_plane": divisor(math.prod(self.counts[1:])), "of_line": divisor(self.counts[2]),
            "channels": divisor(self.x.channels), "taps": divisor(math.prod(self.taps)),
            "plane_taps": divisor(math.prod(self.taps[1:])), "line_taps": divisor(self.taps[2]),
            "w_group": self.weight.group, "w_given": self.weight.given, "w_taken": self.weight.taken,
            "w_start": self.weight.start, "w_axis": self.weight.axis, "x_group": self.x.group,
            "x_image": self.x.image, "x_channel": self.x.channel,
            "x_axis": self.x.axis, "y_group": self.y.group, "y_image": self.y.image, "y_channel": self.y.channel,
            "y_axis": tuple(h * a for h, a in zip(self.hop, self.y.axis, strict=True)),
            "y_start": sum(o * a for o, a in zip(self.origin, self.y.axis, strict=True)),
        }  # fmt: skip
        for name, value in single.items():
            made[name] = value
        return made[()]

    @property
    def places(self) -> int:
        """Places of the result in all images."""
        return self.x.batch * math.prod(self.counts)

    @property
    def sums(self) -> int:
        """Products in a sum."""
        return self.x.channels * math.prod(self.taps)

    @property
    def index(self) -> str:
        """The type of indices that reaches every element."""
        reach = [
            n + abs(f) + t * abs(s) for n, f, t, s in zip(self.x.size, self.first, self.taps, self.step, strict=True)
        ]
        far = self.x.span + sum(r * a for r, a in zip(reach, self.x.axis, strict=True))
        return "i4" if max(far, self.y.span) <= _FARTHEST else "i8"


def _steps(kernel: Three, of: int = 1) -> Three:
    return kernel[1] * kernel[2] * of, kernel[2] * of, of


def forward(x: Layout, y: Layout, kernel: Any, attrs: Any, *, together: bool = False) -> list[Window]:
    """The launches of a convolution: all places, all taps.

    Weights are [O, C/groups, *kernel], or [O, *kernel, channels of x] where those lie `together`.
    """
    kernel, ones = three(kernel, 1), (1, 1, 1)
    taps, taken = math.prod(kernel), x.channels
    first = three([-before for before, _ in attrs.padding], 0)
    along = _steps(kernel, taken if together else 1)
    weight = Steps(y.channels * taken * taps, taken * taps, 1 if together else taps, 0, along)
    places = (y.size, kernel, three(attrs.stride, 1), first, three(attrs.dilation, 1))
    return [Window(x, y, *places, (0, 0, 0), ones, weight)]


def _phases(out: int, kernel: int, stride: int, before: int, dilation: int) -> list[tuple[int, ...]]:
    """Of an axis: origin and count of places, number, first and step of taps, first element of x and step of a tap.

    Place o reads element i through tap k where o + before = i * stride + k * dilation; the last tap comes first.
    """
    phases = []
    for origin in range(min(stride, out)):
        taps = [k for k in reversed(range(kernel)) if (origin + before - k * dilation) % stride == 0]
        reads = [(origin + before - k * dilation) // stride for k in taps]
        by = (taps[1] - taps[0], reads[1] - reads[0]) if len(taps) > 1 else (1, 1)
        count = len(range(origin, out, stride))
        phases.append((origin, count, len(taps), taps[0] if taps else 0, by[0], reads[0] if reads else 0, by[1]))
    return phases


def backward(x: Layout, y: Layout, kernel: Any, attrs: Any, *, together: bool = False) -> list[Window]:
    """The launches of a transposed convolution.

    Weights are [channels of x, channels of y / groups, *kernel], or [groups, channels of y / groups, *kernel, channels
    of x / groups] where those of x lie `together`.
    """
    kernel, stride = three(kernel, 1), three(attrs.stride, 1)
    taps, given, taken = math.prod(kernel), y.channels, x.channels
    steps = _steps(kernel, taken if together else 1)
    of_given, of_taken = (taps * taken, 1) if together else (taps, given * taps)
    before, dilation = three([a for a, _ in attrs.padding], 0), three(attrs.dilation, 1)
    axes = [_phases(*numbers) for numbers in zip(y.size, kernel, stride, before, dilation, strict=True)]
    windows = []
    for phase in itertools.product(*axes):
        origin, counts, number, tap, by, first, step = zip(*phase, strict=True)
        start = sum(t * s for t, s in zip(tap, steps, strict=True))
        along = by[0] * steps[0], by[1] * steps[1], by[2] * steps[2]
        weight = Steps(taken * given * taps, of_given, of_taken, start, along)
        windows.append(Window(x, y, counts, number, (1, 1, 1), first, step, origin, stride, weight))
    return windows
