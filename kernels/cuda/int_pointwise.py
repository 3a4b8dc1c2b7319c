"""Elementwise integer kernels on a GPU: conversions between real numbers and integers, sums, products, tables.

docs/integer-arithmetic.md bit for bit. Arrays are dense in C order, in any shape.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized, storage_of
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import aligned, bounds, constant, index_type
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.integer import f32

Arguments = tuple[Any, ...]
_FILE = "int_pointwise.cu"


def _zero(dtype: Any) -> int:
    return dtype.zero_point if isinstance(dtype, QuantizedDType) else 0


# ---------------------------------------------------------------- conversions


def _conversion(function: str, x: Any, y: Any, size: int = 0) -> Program:
    types = {"XT": type_name(storage_of(x)), "YT": type_name(storage_of(y))}
    return program(_FILE, FUNCTION=function, INDEX=index_type(size), **types)


def _numbers(grid: QuantizedDType, z_x: int) -> Arguments:
    """Bounds and zero points: `grid` is the dtype whose integers are clamped."""
    return (*map(np.int32, bounds(grid)), np.int32(z_x), np.int32(grid.zero_point))


@functools.lru_cache(maxsize=4096)
def _one_scale(problem: Problem, function: str) -> tuple[Program, Arguments]:
    """The program and the arguments behind x and y, where one scale stands for all elements."""
    x, y, attrs = problem.inputs[0], problem.outputs[0], problem.attrs
    grid = known_quantized(attrs.get("dtype", x.dtype))
    scale = f32(grid.only_scale)
    factor = attrs.get("ratio", attrs.get("factor"))
    factor = f32(1) / scale if factor is None else f32(factor)
    if function == "requantize":
        lo, hi = attrs.lo, attrs.hi
        numbers: Arguments = (*map(np.int32, (lo, hi, _zero(x.dtype), grid.zero_point)),)
    else:
        numbers = _numbers(grid, _zero(x.dtype))
    return _conversion(function, x.dtype, y.dtype, y.size), (scale, factor, *numbers, np.int64(y.size))


@functools.lru_cache(maxsize=1024)
def _many_scales(problem: Problem, function: str) -> tuple[Program, Arguments, np.ndarray, np.ndarray]:
    """As `_one_scale` for scales along an axis, and these with their reciprocals."""
    x, y, attrs = problem.inputs[0], problem.outputs[0], problem.attrs
    grid = known_quantized(attrs.get("dtype", x.dtype))
    scales = np.asarray(grid.scale, f32).reshape(-1)
    factor = attrs.get("factor")
    factors = f32(1) / scales if factor is None else np.full_like(scales, factor)
    assert grid.axis is not None
    inner = math.prod(x.shape[grid.axis % x.ndim + 1 :])
    sizes = (np.int64(inner), np.int64(len(scales)), np.int64(y.size))
    return _conversion(function, x.dtype, y.dtype, y.size), (*_numbers(grid, _zero(x.dtype)), *sizes), scales, factors


def _along_axis(problem: Problem) -> bool:
    grid = problem.attrs.get("dtype", problem.inputs[0].dtype)
    return isinstance(grid, QuantizedDType) and grid.axis is not None


def _converted(function: str, problem: Problem, x: DeviceArray) -> DeviceArray:
    runtime = x.runtime
    y = runtime.empty(x.shape, storage_of(problem.outputs[0].dtype))
    if _along_axis(problem):
        unit, numbers, *scales = _many_scales(problem, function)
        kept = [constant(runtime, (v.tobytes(), "scales"), lambda v=v: v) for v in scales]
        runtime.each(unit, "cuda_convert_along", x.size, (x, y, *kept, *numbers))
        return y
    unit, numbers = _one_scale(problem, function)
    if aligned(x, y):
        runtime.each(unit, "cuda_convert", (x.size + 3) // 4, (x, y, *numbers))
    else:
        runtime.each(unit, "cuda_convert_one", x.size, (x, y, *numbers))
    return y


def _away(problem: Problem, x: DeviceArray) -> DeviceArray:
    whole = isinstance(problem.inputs[0].dtype, QuantizedDType)
    return _converted("integer_away" if whole else "quantize_away", problem, x)


# ---------------------------------------------------------------- pairs


def broadcast_walk(out: tuple[int, ...], *shapes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Axes of a result with the steps, in elements, of dense operands that broadcast, the innermost axis first.

    Axes of length 1 are left out, and neighbours that can be walked as one are joined.
    """
    steps = []
    for shape in shapes:
        lengths = (1,) * (len(out) - len(shape)) + shape
        sizes = itertools.accumulate(lengths[:0:-1], lambda a, b: a * b, initial=1)
        steps.append([0 if n == 1 else size for n, size in zip(lengths[::-1], sizes, strict=True)] if lengths else [])
    walk: list[tuple[int, ...]] = []
    for length, *own in zip(out[::-1], *steps, strict=True):
        if length == 1:
            continue
        if walk and all(step == walk[-1][0] * below for step, below in zip(own, walk[-1][1:], strict=True)):
            walk[-1] = (walk[-1][0] * length, *walk[-1][1:])
        else:
            walk.append((length, *own))
    return walk or [(1, *(0 for _ in shapes))]


def _pair_program(function: str, a: Any, r: Any, y: Any, size: int = 0) -> Program:
    wide = max(storage_of(a).itemsize, storage_of(r).itemsize) > 1
    types = {name: type_name(storage_of(dtype)) for name, dtype in (("AT", a), ("RT", r), ("YT", y))}
    integers = {"PRODUCT": "i64" if wide else "int", "INDEX": index_type(size)}
    return program("int_pairs.cu", FUNCTION=function, **integers, **types)


@functools.lru_cache(maxsize=4096)
def _pair(problem: Problem, function: str) -> tuple[Program, Arguments, tuple[tuple[int, ...], ...] | None]:
    """The program, the arguments behind the arrays, and how operands of other shapes are walked."""
    a, r = problem.inputs
    y, attrs = problem.outputs[0], problem.attrs
    ra, rb = (attrs.m, 0.0) if function == "product" else (attrs.ra, attrs.rb)
    zeros = (np.int32(_zero(a.dtype)), np.int32(_zero(r.dtype)), np.int32(_zero(y.dtype)))
    numbers = (*map(f32, (ra, rb, attrs.lo, attrs.hi)), *zeros, np.int64(y.size))
    walk = None if a.shape == r.shape else tuple(broadcast_walk(y.shape, a.shape, r.shape))
    return _pair_program(function, a.dtype, r.dtype, y.dtype, y.size), numbers, walk


def _of_pair(function: str, problem: Problem, a: DeviceArray, r: DeviceArray) -> DeviceArray:
    unit, numbers, walk = _pair(problem, function)
    out, runtime = problem.outputs[0], a.runtime
    y = runtime.empty(out.shape, storage_of(out.dtype))
    if walk is None and aligned(a, r, y):
        runtime.each(unit, "cuda_pair", (y.size + 3) // 4, (a, r, y, *numbers))
        return y
    walk = walk or ((max(y.size, 1), 1, 1),)
    steps = constant(runtime, walk, lambda: np.array(walk, np.int64))
    runtime.each(unit, "cuda_pair_along", y.size, (a, r, y, *numbers, steps, np.int32(len(walk))))
    return y


# ---------------------------------------------------------------- tables


def _table_program(x: Any, y: Any, size: int = 0) -> Program:
    return program("int_table.cu", INDEX=index_type(size), XT=type_name(storage_of(x)), YT=type_name(storage_of(y)))


def _table(problem: Problem, x: DeviceArray, table: DeviceArray) -> DeviceArray:
    spec, axis = problem.inputs[0], problem.attrs.get("axis")
    dtype = known_quantized(spec.dtype)
    y = x.runtime.empty(x.shape, table.dtype)
    count, inner = (1, 1) if axis is None else (x.shape[axis], math.prod(x.shape[axis % x.ndim + 1 :]))
    sizes = (np.int64(inner), np.int64(count), np.int64(x.size))
    least = np.int32(np.iinfo(dtype.storage).min)
    unit = _table_program(dtype, problem.outputs[0].dtype, x.size)
    x.runtime.each(unit, "cuda_table", x.size, (x, table, y, least, np.int32(dtype.codes), *sizes))
    return y


def _kernel(op: str, run: Callable[..., Any]) -> tuple[Kernel, ...]:
    return (EagerKernel(f"cuda_{op}", run),)


_CONVERSIONS = ("quantize", "dequantize", "fake_quant", "requantize", "fake_quant_away")
_PAIRS = {"qadd": "sum", "qmul": "product", "qmaximum": "larger", "qminimum": "smaller"}
KERNELS: dict[str, tuple[Kernel, ...]] = {
    **{op: _kernel(op, functools.partial(_converted, op)) for op in _CONVERSIONS},
    **{op: _kernel(op, functools.partial(_of_pair, function)) for op, function in _PAIRS.items()},
    "quantize_away": _kernel("quantize_away", _away),
    "qtable": _kernel("qtable", _table),
}

_REAL = np.dtype(np.float32)
_EIGHT = (np.dtype(np.uint8), np.dtype(np.int8))
_STORED = (*_EIGHT, np.dtype(np.int16), np.dtype(np.int32))
_FEW = _STORED[:3]


def programs() -> Iterator[Program]:
    """Programs of every function, with the pairs and triples of types that networks have."""
    for stored in _STORED:
        yield from (_conversion(name, _REAL, stored) for name in ("quantize", "quantize_away"))
        yield _conversion("dequantize", stored, _REAL)
        yield _conversion("integer_away", stored, _EIGHT[1])
    yield from (_conversion(name, _REAL, _REAL) for name in ("fake_quant", "fake_quant_away"))
    for x, y in itertools.product(_FEW, _STORED):
        yield _conversion("requantize", x, y)
        yield _table_program(x, y)
    for types in (*itertools.product(_EIGHT, repeat=3), (_STORED[2],) * 3):
        first, second, result = types
        yield _pair_program("sum", first, second, result)
    for function, stored in itertools.product(("product", "larger", "smaller"), _FEW):
        yield _pair_program(function, stored, stored, stored)
