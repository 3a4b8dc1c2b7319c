"""Convolutions over two or three axes of space, their gradients, and transposed convolutions.

Every problem has a kernel in the layout of its arrays; halves (and float32 as TF32) go to tensor cores, whose kernels
read channels-last copies. `channels_last` does the same for arrays [N, *size, C], for plans.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.kernels.cuda import cudnn_graphs, packing
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.conv_geometry import Layout, Window, backward, forward, layout_of, packed
from megengine.kernels.cuda.packing import Packing, kept
from megengine.kernels.cuda.products import (
    THREADS,
    Finish,
    bits_of,
    computed_as,
    grid_of,
    macros_of,
    one_rounding,
    parts_of,
    type_of,
)
from megengine.kernels.cuda.sources import Program, program
from megengine.kernels.cuda.tensor_cores import MULTIPROCESSORS, TILES, Precision, Tile, on_tensor_cores, tile_for, wide
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_FEW = 8  # channels of a group that a tile would be wasted on
DEPTHWISE = (np.dtype(np.float32), np.dtype(np.float16), bfloat16)  # whose weights are packed
_MOST_PLACES = (1 << 31) - 1  # that are numbered in 32 bits


@dataclass(frozen=True, slots=True)
class Launch:
    """How one window is launched."""

    program: Program
    kernel: str
    grid: tuple[int, ...]
    sizes: np.void
    threads: int = THREADS
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """How a problem is computed: how its two first arrays are packed, if at all, and what is launched.

    `parts`: of sums of a gradient for weights, which `adding` adds. `wide`: arrays that are not packed begin at
    multiples of 16 bytes.
    """

    launches: tuple[Launch, ...]
    packings: tuple[Packing | None, Packing | None] = (None, None)
    parts: int = 1
    adding: Program | None = None
    wide: bool = False


def tile_program(file: str, dtype: np.dtype, tile: int, index: str, finish: Finish, *, last: bool) -> Program:
    """The program of a variant of convolution.cu or weighing.cu."""
    by_taps = last or finish.ordered
    return _program(file, dtype, index, finish, last=last, by_taps=by_taps, ROWS=tile, COLUMNS=tile)


def single_program(dtype: np.dtype, index: str, finish: Finish, *, last: bool) -> Program:
    """The program for groups of few channels."""
    return _program("few_channels.cu", dtype, index, finish, last=last, by_taps=last or finish.ordered)


def tensor_program(file: str, dtype: np.dtype, tile: Tile, index: str, finish: Finish, *, last: bool) -> Program:
    """The program of a variant by tensor cores: of tensor_convolution.cu or tensor_weighing.cu."""
    return _program(file, dtype, index, finish, last=last, by_taps=True, **tile.macros)


def adding_program(dtype: np.dtype, index: str, *, last: bool, by_taps: bool) -> Program:
    """The program that adds parts of sums of a gradient for weights."""
    return _program("weight_sums.cu", dtype, index, Finish(), last=last, by_taps=by_taps)


def _program(
    file: str, dtype: np.dtype, index: str, finish: Finish, *, last: bool, by_taps: bool, **more: int
) -> Program:
    given = {"INDEX": type_of(index), "LAST": int(last), "BY_TAPS": int(by_taps), **more}
    return program(file, exact=finish.ordered, **given, **finish.macros, **macros_of(dtype))


def _tile(rows: int, columns: int, more: int, dtype: np.dtype) -> int:
    blocks = -(-rows // 128) * -(-columns // 128) * more
    few_bytes = computed_as(dtype)[1].itemsize == 4
    return 128 if few_bytes and min(rows, columns) > 64 and blocks >= MULTIPROCESSORS else 64


def _launch(window: Window, dtype: np.dtype, finish: Finish, *, last: bool, skips: bool) -> Launch:
    """The launch of a window; `skips`: sums take no products with what lies outside."""
    given, groups = window.y.channels, window.y.groups
    if given < _FEW or skips:
        made = single_program(dtype, window.index, finish, last=last)
        blocks = min(-(-window.places * given * groups // THREADS), 1 << 16)
        return Launch(made, "convolve_singly", (blocks,), window.struct())
    tile = _tile(window.places, given, groups, dtype)
    blocks = -(-window.places // tile) * -(-given // tile)
    made = tile_program("convolution.cu", dtype, tile, window.index, finish, last=last)
    return Launch(made, "convolve", grid_of(blocks, groups), window.struct())


def _tensor_launch(window: Window, dtype: np.dtype, finish: Finish, *, last: bool) -> Launch:
    lines = (window.places, window.y.channels) if last else (window.y.channels, window.places)
    tile = tile_for(*lines, window.y.groups, dtype)
    made = tensor_program("tensor_convolution.cu", dtype, tile, window.index, finish, last=last)
    shared = tile.shared(dtype, left_places=True, right_places=True)
    grid = grid_of(tile.blocks(*lines), window.y.groups)
    return Launch(made, "convolve", grid, window.struct(), tile.threads, shared)


def _packing(layout: Layout, multiple: int, *, last: bool) -> Packing | None:
    """How an activation is packed; None for one that lies so already."""
    channels, to = layout.channels, packed(layout, multiple).channels
    if last:
        ready = layout.groups == 1 and to == channels
        return None if ready else Packing(layout.batch, channels, to, layout.places, layout.groups)
    return Packing(layout.batch * layout.groups, channels, to, layout.places)


def _packed_layout(layout: Layout, multiple: int, *, last: bool) -> Layout:
    """Where the elements of an activation lie after its packing."""
    return packed(layout, multiple) if _packing(layout, multiple, last=last) else layout


def _transposes(problem: Problem) -> bool:
    return "transpose" in problem.op or problem.op.endswith("backward_data")


@functools.lru_cache(4096)
def _plan(problem: Problem, last: bool, architecture: int, tf32: bool) -> Plan:
    (x, w), y, attrs, dtype = problem.inputs[:2], problem.outputs[0], problem.attrs, storage_of(problem.inputs[0].dtype)
    groups, kernel, turned = attrs.groups, w.shape[2:], _transposes(problem)
    ordered, fused = problem.op.startswith("ordered"), problem.op.startswith("fused")
    finish = Finish(ordered, fused, attrs.get("activation", "none"))
    lies = layout_of(_seen(x.shape, last=last), groups, last=last)
    becomes = layout_of(_seen(y.shape, last=last), groups, last=last)
    make = backward if turned else forward
    one_each = lies.channels == becomes.channels == 1 and groups % wide(dtype) == 0
    if last and one_each and not ordered and architecture and dtype in DEPTHWISE:
        return _depthwise(make(lies, becomes, kernel, attrs), dtype, finish)
    if ordered or becomes.channels < _FEW or not on_tensor_cores(dtype, architecture):
        windows = make(lies, becomes, kernel, attrs)
        skips = ordered and turned
        return Plan(tuple(_launch(one, dtype, finish, last=last, skips=skips) for one in windows))
    taken, taps = _packed_layout(lies, wide(dtype), last=last), math.prod(kernel)
    windows = make(taken, becomes, kernel, attrs, together=True)
    launches = tuple(_tensor_launch(one, dtype, finish, last=last) for one in windows)
    if turned:
        of_weight = Packing(groups, lies.channels, taken.channels, becomes.channels * taps)
    else:
        of_weight = Packing(w.shape[0], lies.channels, taken.channels, taps)
    return Plan(launches, (_packing(lies, wide(dtype), last=last), of_weight), wide=True)


def _depthwise(windows: list[Window], dtype: np.dtype, finish: Finish) -> Plan:
    """The plan of one channel to one channel, with channels last: neighbouring channels by one thread."""
    launches, groups = [], windows[0].y.groups
    for window in windows:
        made = single_program(dtype, window.index, finish, last=True)
        blocks = min(-(-window.places * groups // wide(dtype) // THREADS), 1 << 16)
        launches.append(Launch(made, "convolve_depthwise", (blocks,), window.struct()))
    taps = windows[0].weight.group
    return Plan(tuple(launches), (None, Packing(1, groups, groups, taps)), wide=True)


def _seen(shape: tuple[int, ...], *, last: bool) -> tuple[int, ...]:
    """The shape of an array of a value [N, C, *size]: with channels last, or the same."""
    return (shape[0], *shape[2:], shape[1]) if last else shape


def _ready(find: Callable[..., Plan], problem: Problem, last: bool, arrays: tuple[DeviceArray, DeviceArray]) -> Plan:
    """The plan for arrays as they lie."""
    plan = find(problem, last, arrays[0].runtime.architecture, Precision.tf32)
    wrong = (how is None and array.address % 16 for how, array in zip(plan.packings, arrays, strict=True))
    return find(problem, last, 0, False) if plan.wide and any(wrong) else plan


def _run(
    problem: Problem,
    x: DeviceArray,
    w: DeviceArray,
    bias: DeviceArray | None = None,
    residual: DeviceArray | None = None,
    *,
    last: bool = False,
) -> DeviceArray:
    out = x.runtime.empty(_seen(problem.outputs[0].shape, last=last), x.dtype)
    if not out.size:
        return out
    plan = _ready(_plan, problem, last, (x, w))
    of_x, of_w = plan.packings
    if of_x is not None and x.size:
        x = of_x.of(x)
    if of_w is not None and w.size:
        w = kept(of_w, w)
    arguments = tuple(map(bits_of, (x, w, bias, residual, out)))
    for one in plan.launches:
        out.runtime.launch(one.program, one.kernel, one.grid, one.threads, (*arguments, one.sizes), one.shared)
    return out


@functools.lru_cache(4096)
def _weighing(problem: Problem, last: bool, architecture: int, tf32: bool) -> Plan:
    (x, ct), attrs, dtype = problem.inputs, problem.attrs, storage_of(problem.inputs[0].dtype)
    lies, gives = (layout_of(_seen(s.shape, last=last), attrs.groups, last=last) for s in (x, ct))
    if gives.channels >= _FEW and on_tensor_cores(dtype, architecture):
        return _tensor_weighing(lies, gives, problem, last=last)
    window = forward(lies, gives, attrs.kernel, attrs)[0]
    if gives.channels < _FEW:
        blocks = gives.channels * gives.groups * window.sums
        parts, part = parts_of(blocks, window.places, THREADS)
        kernel, grid = "weigh_singly", (blocks, parts)
        made = single_program(dtype, window.index, Finish(), last=last)
    else:
        tile = _tile(gives.channels, window.sums, gives.groups, dtype)
        blocks = -(-gives.channels // tile) * -(-window.sums // tile)
        parts, part = parts_of(blocks * gives.groups, window.places, 16)
        kernel, grid = "weigh", grid_of(blocks * parts, gives.groups)
        made = tile_program("weighing.cu", dtype, tile, window.index, Finish(), last=last)
    sizes = window.struct(part=part, parts=parts, kept=lies.channels)
    adding = adding_program(dtype, window.index, last=last, by_taps=last)
    return Plan((Launch(made, kernel, grid, sizes),), parts=parts, adding=adding)


def _tensor_weighing(lies: Layout, gives: Layout, problem: Problem, *, last: bool) -> Plan:
    dtype, attrs = storage_of(problem.inputs[0].dtype), problem.attrs
    run = wide(dtype)
    x, y = (_packed_layout(one, run, last=last) for one in (lies, gives))
    window = forward(x, y, attrs.kernel, attrs)[0]
    weight = forward(lies, gives, attrs.kernel, attrs)[0].weight  # the gradient lies as weights do
    window = replace(window, y=replace(y, channels=gives.channels), weight=weight)
    rows, columns = gives.channels, window.sums
    tile = tile_for(rows, columns, y.groups, dtype)
    blocks = tile.blocks(rows, columns)
    parts, part = parts_of(blocks * y.groups, window.places, 4 * run)
    made = tensor_program("tensor_weighing.cu", dtype, tile, window.index, Finish(), last=last)
    sizes = window.struct(part=part, parts=parts, kept=lies.channels)
    shared = tile.shared(dtype, left_places=False, right_places=False)
    launch = Launch(made, "weigh", grid_of(blocks * parts, y.groups), sizes, tile.threads, shared)
    packings = (_packing(lies, run, last=last), _packing(gives, run, last=last))
    adding = adding_program(dtype, window.index, last=last, by_taps=True)
    return Plan((launch,), packings, parts, adding, wide=True)


def _backward_weight(problem: Problem, x: DeviceArray, ct: DeviceArray, *, last: bool = False) -> DeviceArray:
    shape, runtime = problem.outputs[0].shape, x.runtime
    if not x.size or not ct.size:
        return runtime.zeros(shape, x.dtype)
    plan = _ready(_weighing, problem, last, (x, ct))
    x, ct = (array if how is None else how.of(array) for how, array in zip(plan.packings, (x, ct), strict=True))
    (one,), out = plan.launches, runtime.empty(shape, x.dtype)
    sums_of_part = int(one.sizes["groups"]) * int(one.sizes["given"]) * int(one.sizes["sums"])
    sums = runtime.empty((plan.parts, sums_of_part), computed_as(out.dtype)[1])
    arguments = (bits_of(x), bits_of(ct), sums, one.sizes)
    runtime.launch(one.program, one.kernel, one.grid, one.threads, arguments, one.shared)
    assert plan.adding is not None
    runtime.each(plan.adding, "finish", sums_of_part, (sums, bits_of(out), one.sizes))
    return out


def channels_last(problem: Problem, *arrays: DeviceArray) -> DeviceArray:
    """The result of a convolution, its transposed form or a gradient, with activations as arrays [N, *size, C].

    Shapes of the problem, weights and their gradients are those of the op.
    """
    return _own_kernel(problem, *arrays, last=True)


def _own_kernel(problem: Problem, *arrays: DeviceArray, last: bool = False) -> DeviceArray:
    run = _backward_weight if problem.op.endswith("backward_weight") else _run
    return run(problem, *arrays, last=last)


def _by_cudnn(problem: Problem, *arrays: DeviceArray, last: bool = False) -> DeviceArray:
    """The result by cuDNN where it has a graph, else by the own kernel."""
    found = cudnn_graphs.computed(problem, arrays, last=last)
    return _own_kernel(problem, *arrays, last=last) if found is None else found


def _by_cudnn_last(problem: Problem, *arrays: DeviceArray) -> DeviceArray:
    return _by_cudnn(problem, *arrays, last=True)


def _numbered(problem: Problem) -> str | None:
    """Why places cannot be numbered in 32 bits. None if they can."""
    most = max(s.shape[0] * math.prod(s.shape[2:]) for s in (problem.inputs[0], *problem.outputs) if s.ndim > 3)
    return f"{most} places" if most > _MOST_PLACES else None


def _in_order(problem: Problem) -> str | None:
    return one_rounding(problem) or _numbered(problem)


def programs() -> Iterator[Program]:
    """Variants that are compiled in tests: every dtype, tile, layout and activation, not in all pairs."""
    float32, float16, relu = np.dtype(np.float32), np.dtype(np.float16), Finish(fused=True, activation="relu")
    yield tile_program("convolution.cu", np.dtype(np.float64), 64, "i4", Finish(), last=False)
    yield tile_program("convolution.cu", np.dtype(np.int32), 64, "i4", Finish(), last=False)
    yield tile_program("weighing.cu", np.dtype(np.float64), 64, "i4", Finish(), last=False)
    yield single_program(float32, "i4", Finish(), last=True)
    yield adding_program(float32, "i4", last=False, by_taps=True)
    for last, index in ((False, "i4"), (True, "i8")):
        yield tile_program("convolution.cu", float32, 128, index, relu, last=last)
        yield tensor_program("tensor_convolution.cu", float16, Tile(128, 128), index, relu, last=last)
    yield tile_program("weighing.cu", float32, 128, "i4", Finish(), last=False)
    yield single_program(float32, "i4", Finish(ordered=True), last=False)
    for number, tile in enumerate(TILES):
        of_weight, forwards = (float32, bfloat16) if number % 2 else (bfloat16, float32)
        yield tensor_program("tensor_weighing.cu", of_weight, tile, "i4", Finish(), last=False)
        yield tensor_program("tensor_convolution.cu", forwards, tile, "i4", Finish(), last=True)
    yield cudnn_graphs.finishing_program("relu")
    yield from packing.programs()


def _kernels(op: str) -> tuple[EagerKernel, ...]:
    own = EagerKernel(f"cuda_{op}", _own_kernel, _in_order if op.startswith("ordered") else _numbered)
    if op.startswith("ordered"):
        return (own,)
    return EagerKernel(f"cuda_cudnn_{op}", _by_cudnn, cudnn_graphs.reason_against), own


def _in_rows(problem: Problem) -> str | None:
    """Why values lie in rows: float32 that no tensor core multiplies has no faster kernel with channels last."""
    dtype = problem.inputs[0].dtype
    turned = dtype.itemsize == 2 or (dtype == np.float32 and Precision.tf32)
    return None if turned else f"{dtype} is computed in rows"


def _last_kernels(op: str) -> tuple[EagerKernel, ...]:
    def asked(problem: Problem) -> str | None:
        return _in_rows(problem) or cudnn_graphs.reason_against(problem)

    by_cudnn = EagerKernel(f"cuda_cudnn_{op}_last", _by_cudnn_last, asked)
    return by_cudnn, EagerKernel(f"cuda_{op}_last", channels_last, lambda p: _in_rows(p) or _numbered(p))


_OPS = (
    *("conv2d", "conv2d_backward_data", "conv2d_backward_weight", "conv_transpose2d", "fused_conv2d"),
    *("conv3d", "conv3d_backward_data", "conv3d_backward_weight", "conv_transpose3d", "fused_conv3d"),
    *("ordered_conv2d", "ordered_conv_transpose2d", "ordered_conv3d", "ordered_conv_transpose3d"),
)
KERNELS: dict[str, tuple[Kernel, ...]] = {op: _kernels(op) for op in _OPS}
# Activations are arrays [N, H, W, C]; weights lie as the op says.
LAST: dict[str, tuple[EagerKernel, ...]] = {
    op: _last_kernels(op) for op in ("conv2d", "fused_conv2d", "conv_transpose2d")
}
