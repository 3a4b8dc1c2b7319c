"""Integer ops along axes on a GPU: means, sums, softmax, normalization; docs/integer-arithmetic.md bit for bit."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized, storage_of
from megengine.core.spec import TensorSpec
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import bounds, constant, index_type
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.integer import f32

_BLOCKS = 1 << 16
Arguments = tuple[Any, ...]
Walk = list[tuple[int, int]]  # lengths and steps of axes, the innermost first


def _program(x: Any, y: Any, size: int = 0) -> Program:
    return program("int_rows.cu", INDEX=index_type(size), XT=type_name(storage_of(x)), YT=type_name(storage_of(y)))


def _clamp(dtype: QuantizedDType) -> Arguments:
    return tuple(map(f32, bounds(dtype)))


def _empty(problem: Problem, x: DeviceArray) -> DeviceArray:
    out = problem.outputs[0]
    return x.runtime.empty(out.shape, storage_of(out.dtype))


def scale_ratio(problem: Problem) -> np.float32:
    """What a sum in steps of x is multiplied by, before the division by the count."""
    return f32(known_quantized(problem.inputs[0].dtype).only_scale) / f32(problem.attrs.dtype.only_scale)


# ---------------------------------------------------------------- means and sums


def axes_apart(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[Walk, Walk]:
    """Axes of a dense array that stay, and those that are summed; neighbours of a kind are joined."""
    walks: tuple[Walk, Walk] = [], []
    step, before = 1, None
    for axis in reversed(range(len(shape))):
        if shape[axis] != 1:
            walk = walks[axis in axes]
            if walk is before:
                walk[-1] = (walk[-1][0] * shape[axis], walk[-1][1])
            else:
                walk.append((shape[axis], step))
            before = walk
        step *= shape[axis]
    return walks[0] or [(1, 0)], walks[1] or [(1, 0)]


def _lanes(summed: Walk, length: int, results: int) -> int:
    """Threads of a sum: one where neighbours are read for neighbouring sums, else a warp, or a block of long rows."""
    if summed[0][1] != 1 and results >= 1 << 12:
        return 1
    return 256 if length >= 1 << 12 else 32 if length >= 8 else 1


@functools.lru_cache(maxsize=4096)
def _mean_launch(problem: Problem) -> tuple[Program, tuple[int, ...], Arguments, int]:
    x, y, axis = problem.inputs[0], problem.outputs[0], problem.attrs.axis
    dtype = known_quantized(x.dtype)
    axes = tuple(range(x.ndim)) if axis is None else tuple(int(a) % x.ndim for a in np.atleast_1d(axis))
    kept, summed = axes_apart(x.shape, axes)
    length = x.size // max(y.size, 1)
    lanes = _lanes(summed, length, y.size)
    m = scale_ratio(problem) / f32(1 if problem.op == "qsum" else max(length, 1))
    sizes = (np.int32(len(kept)), np.int32(len(summed)), np.int64(length), np.int64(y.size), np.int32(lanes))
    zeros = (np.int32(dtype.zero_point), np.int32(problem.attrs.dtype.zero_point))
    walk = tuple(itertools.chain(*kept, *summed))
    blocks = min(-(-y.size // (256 // lanes)), _BLOCKS)
    return _program(dtype, y.dtype, x.size), walk, (*sizes, m, *_clamp(problem.attrs.dtype), *zeros), blocks


def _mean(problem: Problem, x: DeviceArray) -> DeviceArray:
    unit, walk, numbers, blocks = _mean_launch(problem)
    y = _empty(problem, x)
    steps = constant(x.runtime, walk, lambda: np.array(walk, np.int64))
    x.runtime.launch(unit, "cuda_mean", blocks, 256, (x, y, steps, *numbers))
    return y


# ---------------------------------------------------------------- rows


def _blocks_of(spec: TensorSpec, axis: int) -> tuple[int, int, int]:
    """A dense array as [outer, length, inner] around an axis."""
    axis %= spec.ndim
    return math.prod(spec.shape[:axis]), spec.shape[axis], math.prod(spec.shape[axis + 1 :])


@functools.lru_cache(maxsize=4096)
def _softmax_launch(problem: Problem) -> tuple[Program, Arguments, int]:
    x, dtype = problem.inputs[0], problem.attrs.dtype
    outer, length, inner = _blocks_of(x, problem.attrs.axis)
    rows, lanes = outer * inner, 32 if inner == 1 else 1
    sizes = (*map(np.int64, (rows, length, inner)), np.int32(lanes))
    numbers = (*sizes, f32(1) / f32(dtype.only_scale), *_clamp(dtype), np.int32(dtype.zero_point))
    return _program(x.dtype, dtype, x.size), numbers, min(-(-rows // (256 // lanes)), _BLOCKS)


def _softmax(problem: Problem, x: DeviceArray, table: DeviceArray) -> DeviceArray:
    unit, numbers, blocks = _softmax_launch(problem)
    y = _empty(problem, x)
    if y.size:
        x.runtime.launch(unit, "cuda_softmax", blocks, 256, (x, table, y, *numbers))
    return y


@functools.lru_cache(maxsize=4096)
def _norm_launch(problem: Problem) -> tuple[Program, Arguments, int]:
    x, a = problem.inputs[0], problem.attrs
    n = math.prod(x.shape[x.ndim - a.axes :])
    rows, lanes = x.size // n, 32 if n <= 2048 else 256
    zeros = (np.int32(known_quantized(x.dtype).zero_point), np.int32(a.dtype.zero_point))
    sizes = (np.int64(rows), np.int64(n), np.int32(lanes), np.int32(a.centred), np.float64(a.E))
    return _program(x.dtype, a.dtype), (*sizes, *_clamp(a.dtype), *zeros), min(-(-rows // (256 // lanes)), _BLOCKS)


def _norm(problem: Problem, x: DeviceArray, G: DeviceArray, B: DeviceArray) -> DeviceArray:
    unit, numbers, blocks = _norm_launch(problem)
    y = _empty(problem, x)
    x.runtime.launch(unit, "cuda_norm", blocks, 256, (x, G, B, y, *numbers))
    return y


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "qmean": (EagerKernel("cuda_qmean", _mean),),
    "qsum": (EagerKernel("cuda_qsum", _mean),),
    "qsoftmax": (EagerKernel("cuda_qsoftmax", _softmax),),
    "qnorm": (EagerKernel("cuda_qnorm", _norm),),
}


def programs() -> Iterator[Program]:
    """Every program of values of 8 bits, and of 16 beside 16."""
    eight, wide = (np.dtype(np.uint8), np.dtype(np.int8)), np.dtype(np.int16)
    yield from itertools.starmap(_program, (*itertools.product(eight, eight), (wide, wide), (wide, eight[0])))
