"""Convolutions over two or three axes of space, their gradients, and transposed convolutions."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.products import (
    MULTIPROCESSORS,
    THREADS,
    bits_of,
    computed_as,
    grid_of,
    macros_of,
    one_rounding,
    parts_of,
)
from megengine.kernels.cuda.sources import Program, program
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

SPACE = 3  # axes of space in kernels; others have one place
_FEW = 8  # channels of a group that a tile would be wasted on
_FARTHEST = (1 << 31) - 1
_MOST_PLACES = 1 << 30
_DIVISOR = [("magic", "u4"), ("shift", "u4"), ("by", "u4")]
_DIVISORS = ("of_image", "of_plane", "of_line", "channels", "taps", "plane_taps", "line_taps")


@functools.cache
def _struct(index: str) -> np.dtype:
    """The struct Window of the kernels, whose INDEX is a type of NumPy's."""
    return np.dtype(
        [
            *((name, "i4") for name in ("batch", "groups", "taken", "given", "places", "sums", "part", "parts")),
            *((name, "i4", SPACE) for name in ("size", "stride", "first", "step")),
            *((name, _DIVISOR) for name in _DIVISORS),
            *((name, "i8") for name in ("w_group", "w_start", "y_start")),
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
    numbers = tuple(int(n) for n in numbers)
    return (*(filler,) * (SPACE - len(numbers)), *numbers)  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of an array [image, channel, z, y, x] lie: its sizes, and steps in elements."""

    batch: int
    channels: int
    size: Three
    image: int
    channel: int
    axis: Three

    @property
    def span(self) -> int:
        """Elements from the first to the last."""
        ends = zip((self.batch, self.channels, *self.size), (self.image, self.channel, *self.axis), strict=True)
        return sum((n - 1) * step for n, step in ends) + 1


def layout_of(shape: tuple[int, ...], *, last: bool = False) -> Layout:
    """The layout of a dense array [N, C, *size]; `last`: of [N, *size, C]."""
    if last:
        n, *space, c = shape
    else:
        n, c, *space = shape
    size = three(space, 1)
    inner = c if last else 1
    axis = (size[1] * size[2] * inner, size[2] * inner, inner)
    places = math.prod(size)
    return Layout(n, c, size, places * c, 1 if last else places, axis)


@dataclass(frozen=True, slots=True)
class Window:
    """One launch: the places of the result from `origin` by `hop` take the taps that `first` and `step` say.

    `counts`, `taps`: how many, along each axis. Weights are `start` elements from the first, by steps in elements.
    """

    x: Layout
    y: Layout
    groups: int
    counts: Three
    taps: Three
    stride: Three
    first: Three
    step: Three
    origin: Three
    hop: Three
    weight: tuple[
        int, int, int, int, Three
    ]  # steps to the next group, given and taken channel; start; steps along axes

    def struct(self, *, part: int = 0, parts: int = 1) -> np.void:
        """The struct of the kernels."""
        made = np.zeros((), _struct(self.index))
        taken, given = self.x.channels // self.groups, self.y.channels // self.groups
        image, taps = math.prod(self.counts), math.prod(self.taps)
        single: dict[str, Any] = {
            "batch": self.x.batch, "groups": self.groups, "taken": taken, "given": given, "part": part, "parts": parts,
            "places": self.places, "sums": self.sums, "size": self.x.size, "stride": self.stride, "first": self.first,
            "step": self.step, "of_image": divisor(image), "of_plane": divisor(math.prod(self.counts[1:])),
            "of_line": divisor(self.counts[2]), "channels": divisor(taken), "taps": divisor(taps),
            "plane_taps": divisor(math.prod(self.taps[1:])), "line_taps": divisor(self.taps[2]),
            "w_group": self.weight[0], "w_given": self.weight[1], "w_taken": self.weight[2], "w_start": self.weight[3],
            "w_axis": self.weight[4], "x_image": self.x.image, "x_channel": self.x.channel, "x_axis": self.x.axis,
            "y_image": self.y.image, "y_channel": self.y.channel,
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
        return self.x.channels // self.groups * math.prod(self.taps)

    @property
    def index(self) -> str:
        """The type of indices that reaches every element."""
        reach = [
            n + abs(f) + t * abs(s) for n, f, t, s in zip(self.x.size, self.first, self.taps, self.step, strict=True)
        ]
        far = self.x.span + sum(r * a for r, a in zip(reach, self.x.axis, strict=True))
        return "i4" if max(far, self.y.span) <= _FARTHEST else "i8"


def _steps(kernel: Three) -> Three:
    return kernel[1] * kernel[2], kernel[2], 1


def forward(x: Layout, y: Layout, kernel: Any, attrs: Any) -> list[Window]:
    """The launches of a convolution with weights [O, C/groups, *kernel]: all places, all taps."""
    kernel, groups, ones = three(kernel, 1), attrs.groups, (1, 1, 1)
    taps, taken = math.prod(kernel), x.channels // groups
    first = three([-before for before, _ in attrs.padding], 0)
    weight = (y.channels // groups * taken * taps, taken * taps, taps, 0, _steps(kernel))
    places = (y.size, kernel, three(attrs.stride, 1), first, three(attrs.dilation, 1))
    return [Window(x, y, groups, *places, (0, 0, 0), ones, weight)]


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


def backward(x: Layout, y: Layout, kernel: Any, attrs: Any) -> list[Window]:
    """The launches of a transposed convolution; w is [channels of x, channels of y / groups, *kernel]."""
    kernel, groups = three(kernel, 1), attrs.groups
    taps, given, stride = math.prod(kernel), y.channels // groups, three(attrs.stride, 1)
    before, dilation = three([a for a, _ in attrs.padding], 0), three(attrs.dilation, 1)
    axes = [_phases(*numbers) for numbers in zip(y.size, kernel, stride, before, dilation, strict=True)]
    windows = []
    for phase in itertools.product(*axes):
        origin, counts, number, tap, by, first, step = zip(*phase, strict=True)
        start = sum(t * s for t, s in zip(tap, _steps(kernel), strict=True))
        along = tuple(b * s for b, s in zip(by, _steps(kernel), strict=True))
        weight = (x.channels // groups * given * taps, taps, given * taps, start, along)
        windows.append(Window(x, y, groups, counts, number, (1, 1, 1), first, step, origin, stride, weight))
    return windows


@dataclass(frozen=True, slots=True)
class Launch:
    """How one window is launched."""

    program: Program
    kernel: str
    grid: tuple[int, ...]
    sizes: np.void


def _program(dtype: np.dtype, tile: int, index: str, **more: Any) -> Program:
    ordered, fused, activation = more.get("ordered", False), more.get("fused", False), more.get("activation", "none")
    last = more.get("last", False)
    return program(
        "convolution.cu",
        exact=ordered,
        TILE=tile,
        INDEX="int" if index == "i4" else "i64",
        LAST=int(last),
        BY_TAPS=int(last or ordered),
        FUSED=int(fused),
        ACT=f"op_{activation}",
        **macros_of(dtype),
    )


def _tile(rows: int, columns: int, more: int, total: np.dtype) -> int:
    blocks = -(-rows // 128) * -(-columns // 128) * more
    return 128 if total.itemsize == 4 and min(rows, columns) > 64 and blocks >= MULTIPROCESSORS else 64


def launch_of(window: Window, dtype: np.dtype, *, skips: bool = False, **more: Any) -> Launch:
    """The launch of a window; `skips`: sums take no products with what lies outside."""
    given = window.y.channels // window.groups
    if given < _FEW or skips:
        made = _program(dtype, 64, window.index, **more)
        blocks = min(-(-window.places * window.y.channels // THREADS), 1 << 16)
        return Launch(made, "convolve_singly", (blocks,), window.struct())
    tile = _tile(window.places, given, window.groups, computed_as(dtype)[1])
    blocks = -(-window.places // tile) * -(-given // tile)
    made = _program(dtype, tile, window.index, **more)
    return Launch(made, "convolve", grid_of(blocks, window.groups), window.struct())


def convolve(
    launches: list[Launch], x: DeviceArray, w: DeviceArray, out: DeviceArray,
    bias: DeviceArray | None = None, residual: DeviceArray | None = None,
) -> DeviceArray:  # fmt: skip
    """Launch a convolution into an array that is not yet written."""
    arguments = tuple(map(bits_of, (x, w, bias, residual, out)))
    for one in launches:
        out.runtime.launch(one.program, one.kernel, one.grid, THREADS, (*arguments, one.sizes))
    return out


@functools.lru_cache(4096)
def _launches(problem: Problem) -> list[Launch]:
    (x, w), y, attrs = problem.inputs[:2], problem.outputs[0], problem.attrs
    transposes = "transpose" in problem.op or problem.op.endswith("backward_data")
    windows = (backward if transposes else forward)(layout_of(x.shape), layout_of(y.shape), w.shape[2:], attrs)
    ordered, fused = problem.op.startswith("ordered"), problem.op.startswith("fused")
    more = {"ordered": ordered, "fused": fused, "activation": attrs.get("activation", "none")}
    return [launch_of(one, storage_of(x.dtype), skips=ordered and transposes, **more) for one in windows]


def _convolution(
    problem: Problem,
    x: DeviceArray,
    w: DeviceArray,
    bias: DeviceArray | None = None,
    residual: DeviceArray | None = None,
) -> DeviceArray:
    out = x.runtime.empty(problem.outputs[0].shape, x.dtype)
    return convolve(_launches(problem), x, w, out, bias, residual) if out.size else out


@dataclass(frozen=True, slots=True)
class Weighing:
    """How the gradient for weights is launched: sums in parts, then the whole."""

    launch: Launch
    parts: int


def weighing_of(window: Window, dtype: np.dtype, **more: Any) -> Weighing:
    """The launches of the gradient for the weights of a window."""
    given, total = window.y.channels // window.groups, computed_as(dtype)[1]
    if given < _FEW:
        blocks = window.y.channels * window.sums
        parts, part = parts_of(blocks, window.places, THREADS)
        made = _program(dtype, 64, window.index, **more)
        return Weighing(Launch(made, "weigh_singly", (blocks, parts), window.struct(part=part, parts=parts)), parts)
    tile = _tile(given, window.sums, window.groups, total)
    blocks = -(-given // tile) * -(-window.sums // tile)
    parts, part = parts_of(blocks * window.groups, window.places, 16)
    grid = grid_of(blocks * parts, window.groups)
    return Weighing(
        Launch(_program(dtype, tile, window.index, **more), "weigh", grid, window.struct(part=part, parts=parts)), parts
    )


def weigh(weighing: Weighing, x: DeviceArray, ct: DeviceArray, out: DeviceArray) -> DeviceArray:
    """Launch the gradient for weights into an array that is not yet written."""
    runtime, one = out.runtime, weighing.launch
    sums = runtime.empty((weighing.parts, out.size), computed_as(out.dtype)[1])
    runtime.launch(one.program, one.kernel, one.grid, THREADS, (bits_of(x), bits_of(ct), sums, one.sizes))
    runtime.each(one.program, "finish", out.size, (sums, bits_of(out), one.sizes))
    return out


@functools.lru_cache(4096)
def _weighing(problem: Problem) -> Weighing:
    x, ct = problem.inputs
    window = forward(layout_of(x.shape), layout_of(ct.shape), problem.attrs.kernel, problem.attrs)[0]
    return weighing_of(window, storage_of(x.dtype))


def _backward_weight(problem: Problem, x: DeviceArray, ct: DeviceArray) -> DeviceArray:
    shape = problem.outputs[0].shape
    if not x.size or not ct.size:
        return x.runtime.zeros(shape, x.dtype)
    return weigh(_weighing(problem), x, ct, x.runtime.empty(shape, x.dtype))


def _entries() -> Iterator[tuple[str, Kernel]]:
    for op in ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"):
        yield op, EagerKernel(f"cuda_{op}", _convolution)
        yield f"ordered_{op}", EagerKernel(f"cuda_ordered_{op}", _convolution, one_rounding)
    for op in ("conv2d", "conv3d"):
        yield f"fused_{op}", EagerKernel(f"cuda_fused_{op}", _convolution)
        yield f"{op}_backward_data", EagerKernel(f"cuda_{op}_backward_data", _convolution)
        yield f"{op}_backward_weight", EagerKernel(f"cuda_{op}_backward_weight", _backward_weight)


KERNELS: dict[str, tuple[Kernel, ...]] = {op: (kernel,) for op, kernel in _entries()}
