"""Integer layers on a GPU: convolutions and linear layers, docs/integer-arithmetic.md bit for bit.

Kernels take and give dense channels-last arrays, `layer_last`; the eager calls turn [N,C,H,W] into that and back.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized, storage_of
from megengine.kernels.cuda import int_layout
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import aligned, index_type, packed
from megengine.kernels.cuda.int_layout import to_first, to_last, wider
from megengine.kernels.cuda.sources import Program, headers_of, program, text_of, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_KNOWN = ((3, 1), (3, 2), (5, 1), (5, 2))  # widths and strides of depthwise windows in networks
_PROCESSORS = 132  # multiprocessors of an H100 or H200, for the choice of tiles
_LAST_WARPS = 80  # compute capability from which tensor cores take 8-bit numbers in products of depth 32


@dataclass(frozen=True, slots=True)
class Tile:
    """What a block of the tensor-core kernel computes; `speed` is relative, of a multiprocessor full of such blocks.

    Tiles of speed 0 are taken where they were measured to be fastest, by plans that are tuned.
    """

    pixels: int
    channels: int
    warp_pixels: int
    stages: int
    blocks: int  # at once on a multiprocessor
    speed: float = 0.0
    warp_channels: int = 32

    @property
    def name(self) -> str:
        """Of the tile in rows of figures and in the file of tuned kernels."""
        return f"{self.pixels}x{self.channels}/{self.warp_pixels}x{self.warp_channels}:{self.stages}"

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.pixels // self.warp_pixels * (self.channels // self.warp_channels) * 32

    @property
    def shared(self) -> int:
        """Bytes of a block."""
        return self.stages * (self.pixels + self.channels) * 64


TILES = (
    Tile(128, 128, 64, 3, 2, 1.0),
    Tile(128, 64, 64, 4, 3, 0.95),
    Tile(64, 64, 32, 4, 4, 0.86),
    Tile(128, 32, 32, 4, 4, 0.42),
    Tile(32, 32, 16, 4, 8, 0.41),
    # warps of 64 x 64 read less of shared memory a product than warps of 64 x 32
    Tile(128, 128, 64, 4, 2, warp_channels=64),
    Tile(128, 256, 64, 4, 1, warp_channels=64),
    Tile(256, 64, 64, 4, 2, warp_channels=64),
    Tile(128, 64, 64, 6, 3, warp_channels=64),
    # 132 blocks for 32 pictures of 14 x 14 in 256 channels, and 262 for 28 x 28 in 128
    Tile(96, 128, 48, 5, 2, warp_channels=64),
    Tile(96, 128, 32, 5, 2, warp_channels=64),
    # deep rings and small blocks, for few pixels and many channels
    Tile(128, 128, 64, 6, 2),
    Tile(64, 128, 32, 6, 2),
    Tile(64, 64, 32, 8, 3),
    Tile(64, 32, 32, 8, 4),
)
RULED = tuple(tile for tile in TILES if tile.speed)  # what plans that are not tuned choose from


def tiles_of(grain: int) -> tuple[Tile, ...]:
    """Those that are measured where so many bytes are copied at once: small copies take registers of wide warps."""
    return tuple(tile for tile in TILES if grain == 16 or tile.warp_channels == 32)


def digest() -> str:
    """What times of tiles hold for: the text of their kernel."""
    source = text_of("int_gemm.cu")
    return hashlib.sha256("".join([source, *headers_of(source).values()]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Geometry:
    """A layer as a convolution; a linear layer has windows of one pixel, and its rows are pixels."""

    size: tuple[int, int, int, int]  # images, height, width, channels
    given: int  # channels of the result
    output: tuple[int, int]
    window: tuple[int, int]
    stride: tuple[int, int]
    begin: tuple[int, int]  # padding above and to the left
    dilation: tuple[int, int]
    groups: int

    @property
    def pixels(self) -> int:
        """Pixels of the result, of all images."""
        return self.size[0] * math.prod(self.output)

    @property
    def taps(self) -> int:
        """Pixels of a window."""
        return math.prod(self.window)

    @property
    def taken(self) -> int:
        """Channels of x that a result reads."""
        return self.size[3] // self.groups

    @property
    def of_group(self) -> int:
        """Channels of the result in a group."""
        return self.given // self.groups


@functools.lru_cache(maxsize=4096)
def geometry(problem: Problem) -> Geometry:
    """The layer of a problem of qconv2d or qlinear."""
    x, w = problem.inputs[:2]
    if problem.op == "qlinear":
        ones = (1, 1)
        rows = math.prod(x.shape[:-1])
        return Geometry((rows, 1, 1, x.shape[-1]), w.shape[0], ones, ones, ones, (0, 0), ones, 1)
    a, (n, c, height, width) = problem.attrs, x.shape
    (top, _), (left, _) = a.padding
    out = problem.outputs[0].shape
    sizes = (_two(v) for v in (out[2:], w.shape[2:], a.stride, (top, left), a.dilation))
    size, window, stride, begin, dilation = sizes
    return Geometry((n, height, width, c), w.shape[0], size, window, stride, begin, dilation, int(a.groups))


def _two(numbers: Any) -> tuple[int, int]:
    first, second = map(int, numbers)
    return first, second


@dataclass(frozen=True, slots=True)
class Form:
    """How a layer is computed: the kernel, and how its weights are packed."""

    kernel: str
    channels: int  # of x in a group, as the kernel has them
    joined: int = 1  # groups of the layer that are one group of the kernel
    padded: int = 0  # channels of a tap in the packed weights
    rows: int = 0  # channels of y in a group, filled up
    depth: int = 0  # of the packed weights
    grain: int = 16
    tile: Tile | None = None
    point: bool = False  # pixels of x are those of y
    pair: int = 1  # neighbouring pixels of x that are one pixel of the kernel
    columns: tuple[int, int] = (0, 0)  # width and stride of depthwise windows that have a program of their own


def _up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def _grain(*sizes: int) -> int:
    """Bytes that may be copied at once: what divides all sizes."""
    return next((n for n in (16, 8, 4) if all(size % n == 0 for size in sizes)), 0)


def _joined(g: Geometry) -> int:
    """How many groups are computed as one by tensor cores: they read zeros for what a channel does not take."""

    def cost(joined: int) -> float:
        depth, rows = _up(g.taken * joined * g.taps, 64), _up(g.of_group * joined, 32)
        return g.groups // joined * depth * rows * (1 if g.taken * joined % 16 == 0 else 1.25)

    most = max(1, 256 // max(g.taken, 1))
    fitting = [j for j in range(1, min(g.groups, most) + 1) if g.groups % j == 0 and g.taken * j % 4 == 0]
    return min(fitting, key=cost, default=0)


def _paired(g: Geometry, channels: int, pitch: int) -> bool:
    """Whether two neighbouring pixels may be one of twice the channels: half as many copies, of twice the bytes."""
    neighbours = g.stride[1] == 2 and g.dilation[1] == 1 and g.window[1] > 2 and g.size[2] % 2 == 0
    return g.groups == 1 and channels == pitch <= 8 and neighbours


def _seen(g: Geometry, pair: int) -> tuple[Geometry, int]:
    """The layer as its kernel sees it, and how many places stand before the window's first pixel."""
    if pair == 1:
        return g, 0
    (n, h, w, c), left = g.size, -(-g.begin[1] // 2)
    lead = 2 * left - g.begin[1]
    window = (g.window[0], -(-(g.window[1] + lead) // 2))
    stride, begin = (g.stride[0], 1), (g.begin[0], left)
    return replace(g, size=(n, h, w // 2, 2 * c), window=window, stride=stride, begin=begin), lead


def best_tile(pixels: int, channels: int, groups: int) -> Tile:
    """The tile whose blocks are estimated to end first."""

    def time(tile: Tile) -> float:
        blocks = -(-pixels // tile.pixels) * -(-channels // tile.channels) * groups
        return -(-blocks // _PROCESSORS) * tile.pixels * tile.channels / tile.speed

    return min(RULED, key=time)


def _tensor_cores(g: Geometry, pitch: int) -> Form | None:
    """How tensor cores compute a layer of 8-bit x, or None if they cannot."""
    joined = _joined(g) if g.groups > 1 else 1
    channels = _up(g.taken, 4) if g.groups == 1 else g.taken * joined
    pair = 2 if _paired(g, channels, pitch) else 1
    taps, grain = _seen(g, pair)[0].taps, _grain(channels * pair, pitch * pair)
    if g.pixels >= 1 << 30 or math.prod(g.size[1:3]) * pitch >= 1 << 31:
        return None  # the kernel counts pixels, and elements of an image, with 32 bits
    if not joined or not grain or channels * (g.groups // joined) > pitch or g.groups // joined > 65535 or not channels:
        return None
    rows = _up(g.of_group * joined, 32)
    tile = best_tile(g.pixels, g.of_group * joined, g.groups // joined)
    point = g.window == g.stride == (1, 1) and g.size[1:3] == g.output and g.begin == (0, 0)
    channels *= pair
    depth = _up(channels * taps, 64)
    return Form("cuda_conv_mma", channels, joined, channels, rows, depth, grain, tile, point, pair)


@functools.lru_cache(maxsize=4096)
def form_of(g: Geometry, itemsize: int, pitch: int, architecture: int) -> Form:
    """The fastest form of a layer whose x has so many bytes a number, and `pitch` channels in memory."""
    depthwise = g.taken == 1 and g.given == g.groups
    if itemsize == 1 and depthwise and g.given % 4 == 0 and pitch % 4 == 0:
        columns = (g.window[1], g.stride[1])
        known = columns in _KNOWN and g.dilation[1] == 1
        return Form("cuda_depthwise", 1, rows=g.given, columns=columns if known else (0, 0))
    if itemsize == 1 and architecture >= _LAST_WARPS:
        found = _tensor_cores(g, pitch)
        if found is not None:
            return found
    filled = _up(g.taken, 4)
    channels = filled if g.groups == 1 and pitch >= filled else g.taken
    tiles = g.of_group >= 16 and g.groups <= 65535
    padded = _up(channels, 4)
    return Form("cuda_conv_tiles" if tiles else "cuda_conv_each", channels, 1, padded, g.of_group, padded * g.taps)


# ---------------------------------------------------------------- weights


def _pack(g: Geometry, form: Form, z_x: int, w: DeviceArray, b: DeviceArray, M: DeviceArray, B: DeviceArray) -> Any:
    """Packed weights, and b, M and B of their rows."""
    runtime, unit = w.runtime, program("int_pack.cu")
    whole = w.view(np.int8)
    groups = g.groups // form.joined
    if form.kernel == "cuda_depthwise":
        weights = runtime.empty((g.taps, g.given), np.int8)
        counts = (np.int32(g.taps), np.int32(g.given), np.int64(weights.size))
        runtime.each(unit, "cuda_pack_depthwise", weights.size, (whole, weights, *counts))
        groups, of_group = 1, g.given
    else:
        weights = runtime.empty((groups, form.rows, form.depth), np.int8)
        sizes = (g.of_group, g.taken, g.taps, form.joined, form.padded, form.rows, form.depth, form.tile is not None)
        seen, lead = _seen(g, form.pair)
        window = (g.window[1], form.pair, seen.window[1], lead)
        arguments = (whole, weights, *map(np.int32, (*sizes, *window)), np.int64(weights.size))
        runtime.each(unit, "cuda_pack", weights.size, arguments)
        of_group = g.of_group * form.joined
    places = groups * form.rows
    channels = tuple(runtime.empty((places,), t) for t in (np.int32, np.float32, np.float32))
    sizes = (z_x, of_group, form.rows, g.taken * g.taps)
    arguments = (whole, b, M, B, *channels, *map(np.int32, sizes), np.int64(places))
    runtime.launch(unit, "cuda_pack_channels", -(-places // 8), 256, arguments)
    return weights, *channels


# ---------------------------------------------------------------- launches


def _stored(dtype: Any) -> np.dtype:
    """How kernels see results and residuals: those of 8 bits as unsigned, whatever their sign."""
    storage = storage_of(dtype)
    return np.dtype(np.uint8) if storage.itemsize == 1 else storage


def _program(form: Form, x: Any, out: Any, residual: Any | None, *, eights: bool, size: int = 0) -> Program:
    given, residual = residual is not None, np.dtype(np.uint8) if residual is None else residual
    types = {"XT": type_name(storage_of(x)), "OUT": type_name(_stored(out)), "RT": type_name(_stored(residual))}
    if form.kernel == "cuda_depthwise":
        window = {"WIDTH": form.columns[0], "STRIDE": form.columns[1], "ACROSS": 4}
        return program("int_depthwise.cu", INDEX=index_type(size), **window, **types)
    if form.tile is None:
        wide = storage_of(x).itemsize > 1
        sums = {"ACC": "i64" if wide else "int", "BYTES": int(not wide)}
        return program("int_direct.cu", INDEX=index_type(size), **sums, **types)
    tile = form.tile
    sizes = {"BLOCK_M": tile.pixels, "BLOCK_N": tile.channels}
    sizes |= {"WARP_M": tile.warp_pixels, "WARP_N": tile.warp_channels}
    sizes |= {"STAGES": tile.stages, "BLOCKS": tile.blocks, "GRAIN": form.grain}
    modes = {"POINT": int(form.point), "RESIDUAL": int(given), "EIGHTS": int(eights)}
    return program("int_gemm.cu", **sizes, **modes, **types)


@dataclass(frozen=True, slots=True)
class Launch:
    """All of a launch but its arrays: arguments behind x, weights, b, M, B, residual and y."""

    program: Program
    kernel: str
    grid: tuple[int, ...]
    block: int
    arguments: tuple[Any, ...]
    shared: int = 0


def _window(g: Geometry, pitch: int) -> tuple[int, ...]:
    _, height, width, _ = g.size
    return (height, width, pitch, *g.output, *g.window, *g.stride, *g.begin, *g.dilation)


def _output(problem: Problem) -> tuple[Any, ...]:
    a, dtype = problem.attrs, problem.attrs.dtype
    z_y = dtype.zero_point if isinstance(dtype, QuantizedDType) else 0
    residual = known_quantized(problem.inputs[5].dtype) if len(problem.inputs) > 5 else None
    z_r, signed = (residual.zero_point, residual.storage.kind == "i") if residual else (0, False)
    return (*map(np.float32, (a.ratio, a.lo, a.hi)), *map(np.int32, (z_r, z_y, signed)))


@functools.lru_cache(maxsize=4096)
def _launch(problem: Problem, form: Form, pitch: int) -> Launch:
    g, x = geometry(problem), known_quantized(problem.inputs[0].dtype)
    residual = next((spec.dtype for spec in problem.inputs[5:]), None)
    size = max(problem.inputs[0].size, problem.outputs[0].size)
    unit = _program(form, x, problem.outputs[0].dtype, residual, eights=g.of_group * form.joined % 8 == 0, size=size)
    tail = (*map(np.int32, _window(_seen(g, form.pair)[0], pitch * form.pair)), *_output(problem))
    z, groups, of_group = x.zero_point, g.groups // form.joined, g.of_group * form.joined
    if form.kernel == "cuda_depthwise":
        rows = g.size[0] * g.output[0]
        arguments = (np.int32(g.given), np.int32(z), np.int64(rows), *tail)
        threads = rows * -(-g.output[1] // 4) * (g.given // 4)
        return Launch(unit, form.kernel, (min(-(-threads // 256), 1 << 20),), 256, arguments)
    if form.tile is None:
        sizes = map(np.int32, (groups, form.channels, of_group, form.rows, form.padded, z))
        tiles = (-(-g.pixels // 64), -(-of_group // 64), groups)
        each = (min(-(-g.pixels * g.given // 256), 1 << 20),)
        grid = tiles if form.kernel == "cuda_conv_tiles" else each
        return Launch(unit, form.kernel, grid, 256, (*sizes, np.int64(g.pixels), *tail))
    tile, across = form.tile, -(-of_group // form.tile.channels)
    sizes = map(np.int32, (groups, form.channels, of_group, form.rows, form.depth, z))
    grid = (-(-g.pixels // tile.pixels) * across, 1, groups)
    arguments = (*sizes, np.int32(g.pixels), np.int32(across), *tail)
    return Launch(unit, form.kernel, grid, tile.threads, arguments, tile.shared)


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A layer in a form, with all that calls need and that does not change between them."""

    g: Geometry
    form: Form
    folded: int  # the zero point of x that b takes up
    key: int  # of the packed weights: one for each geometry, form and zero point
    shape: tuple[int, ...]  # of y [N,H,W,O]
    stored: np.dtype  # of y
    seen: np.dtype  # as which the kernel writes y
    residual: np.dtype | None  # as which it reads the residual
    launch: Launch


_keys: dict[tuple[Geometry, Form, int], int] = {}


@functools.lru_cache(maxsize=4096)
def prepared(problem: Problem, pitch: int, architecture: int, form: Form | None = None) -> Prepared:
    """A layer whose x has `pitch` channels in memory, in a form or the fastest one."""
    g, x, out = geometry(problem), known_quantized(problem.inputs[0].dtype), problem.outputs[0].dtype
    form = form or form_of(g, x.itemsize, pitch, architecture)
    folded = x.zero_point if x.itemsize == 1 else 0
    key = _keys.setdefault((g, form, folded), len(_keys))
    residual = _stored(problem.inputs[5].dtype) if len(problem.inputs) > 5 else None
    shape = (g.size[0], *g.output, g.given)
    return Prepared(g, form, folded, key, shape, storage_of(out), _stored(out), residual, _launch(problem, form, pitch))


def run_last(made: Prepared, x: DeviceArray, *more: DeviceArray) -> DeviceArray:
    """A layer of x [N,H,W,pitch]: w, b, M, B as the op has them, perhaps a residual [N,H,W,O] -> y [N,H,W,O].

    What lies in channels beyond those of x does not matter. Rows of a linear layer are pixels: x is [rows,1,1,K].
    """
    runtime, launch = x.runtime, made.launch
    w, b, M, B = more[:4]
    kept = packed((w, b, M, B), made.key, lambda: _pack(made.g, made.form, made.folded, w, b, M, B))
    y = runtime.empty(made.shape, made.stored)
    residual = None if made.residual is None else _at_words(more[4]).view(made.residual)
    arguments = (_at_words(x), *kept, residual, y.view(made.seen), *launch.arguments)
    runtime.launch(launch.program, launch.kernel, launch.grid, launch.block, arguments, launch.shared)
    return y


def _at_words(x: DeviceArray) -> DeviceArray:
    """The array at an address from which several numbers may be read at once: parts of others are copied."""
    return x if aligned(x) else x.runtime.duplicate(x)


def layer_last(problem: Problem, form: Form, x: DeviceArray, *more: DeviceArray) -> DeviceArray:
    """`run_last` in a form."""
    return run_last(prepared(problem, x.shape[3], x.runtime.architecture, form), x, *more)


def conv_last(problem: Problem, x: DeviceArray, *more: DeviceArray, tile: Tile | None = None) -> DeviceArray:
    """`run_last` in the form that is fastest; tensor cores get wider pixels where words need them.

    A tile, which was measured to be the fastest, takes the place of the one that is chosen by a rule.
    """
    pitch, architecture = useful_pitch(problem), x.runtime.architecture
    if x.shape[3] < pitch and prepared(problem, pitch, architecture).form.tile:
        x = wider(x, pitch)
    made = prepared(problem, x.shape[3], architecture)
    if tile is not None and made.form.tile is not None:
        made = prepared(problem, x.shape[3], architecture, replace(made.form, tile=tile))
    return run_last(made, x, *more)


@functools.lru_cache(maxsize=4096)
def useful_pitch(problem: Problem) -> int:
    """How many channels x should have in memory: a multiple of four, which kernels read as words."""
    g = geometry(problem)
    return _up(g.size[3], 4) if g.groups == 1 else g.size[3]


def _conv(problem: Problem, x: DeviceArray, *more: DeviceArray) -> DeviceArray:
    if not problem.outputs[0].size:
        return x.runtime.empty(problem.outputs[0].shape, storage_of(problem.outputs[0].dtype))
    pitch = useful_pitch(problem)
    made = prepared(problem, pitch, x.runtime.architecture)
    return to_first(run_last(made, to_last(x, pitch), *more[:4], *map(to_last, more[4:])))


def _linear(problem: Problem, x: DeviceArray, *more: DeviceArray) -> DeviceArray:
    out = problem.outputs[0]
    if not out.size:
        return x.runtime.empty(out.shape, storage_of(out.dtype))
    return conv_last(problem, x.reshape(geometry(problem).size), *more).reshape(out.shape)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "qconv2d": (EagerKernel("cuda_qconv2d", _conv),),
    "qlinear": (EagerKernel("cuda_qlinear", _linear),),
}

LAST = {"qconv2d": (EagerKernel("cuda_qconv2d_last", conv_last),)}


def _tensor_core_programs() -> Iterator[Program]:
    u8, s8, real = (np.dtype(t) for t in (np.uint8, np.int8, np.float32))
    for tile in TILES:
        form = Form("cuda_conv_mma", 16, tile=tile)
        for residual in (None, u8) if tile.speed else (u8,):
            yield _program(form, s8, u8, residual, eights=True)
            yield _program(replace(form, point=True), u8, u8, residual, eights=True)
        if tile in tiles_of(4):
            yield _program(replace(form, grain=4), u8, u8, u8, eights=False)
    yield _program(replace(form, grain=8), u8, s8, s8, eights=True)
    yield _program(replace(form, point=True), s8, real, None, eights=True)


def programs() -> Iterator[Program]:
    """Programs of layers in all forms, with residuals of the type of the results."""
    yield from int_layout.programs()
    yield program("int_pack.cu")
    yield from _tensor_core_programs()
    u8, s8, s16, real = (np.dtype(t) for t in (np.uint8, np.int8, np.int16, np.float32))
    for x, out in itertools.product((u8, s8), (u8, real)):
        for columns in ((0, 0), *_KNOWN):
            yield _program(Form("cuda_depthwise", 1, columns=columns), x, out, u8, eights=True)
        yield _program(Form("cuda_conv_tiles", 1), x, out, u8, eights=True)
    for out in (u8, s16, real):
        yield _program(Form("cuda_conv_tiles", 1), s16, out, s16, eights=True)
