"""Products of two computed integer matrices on a GPU, docs/integer-arithmetic.md bit for bit: qmatmul."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized, storage_of
from megengine.kernels.cuda import int_layout
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.int_constants import aligned, constant
from megengine.kernels.cuda.runtime import Runtime
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference.integer import f32

_GRAIN = 16  # bytes that are copied at once
_WITH_MMA = 80  # compute capability from which tensor cores take 8-bit numbers in products of depth 32
_MOST = 65535  # blocks along z of a grid


def _places(own: tuple[int, ...], size: int, stacks: tuple[int, ...]) -> np.ndarray:
    """Where the matrices of an operand with stacks of its own begin, for every stack of the result."""
    numbers = np.arange(math.prod(own), dtype=np.int64).reshape(own) * size
    return np.ascontiguousarray(np.broadcast_to(numbers, stacks)).reshape(-1)


@dataclass(frozen=True, slots=True)
class _Shape:
    """A product of matrices [rows, depth] and [depth, columns] in stacks, and the stacks that each operand has."""

    rows: int
    columns: int
    depth: int
    stacks: tuple[int, ...]
    a_own: tuple[int, ...]
    r_own: tuple[int, ...]


def _shape_of(problem: Problem) -> _Shape:
    (a, r), attrs, out = problem.inputs, problem.attrs, problem.outputs[0]
    *stacks, rows, columns = out.shape
    depth = a.shape[-2 if attrs.transpose_a else -1]
    if not attrs.transpose_a and math.prod(r.shape[:-2]) == 1 and a.shape[:-2] == tuple(stacks):
        return _Shape(rows * math.prod(stacks), columns, depth, (), (), ())  # one r: all stacks are rows of one product
    return _Shape(rows, columns, depth, tuple(stacks), a.shape[:-2], r.shape[:-2])


def _zeros(problem: Problem) -> tuple[int, int]:
    a, r = (known_quantized(s.dtype).zero_point for s in problem.inputs)
    return a, r


def _grid(shape: _Shape) -> tuple[int, ...]:
    return -(-shape.rows // 64) * -(-shape.columns // 64), 1, min(math.prod(shape.stacks), _MOST)


def _tail(problem: Problem) -> tuple[Any, ...]:
    """The last arguments of kernels: zero points, the factor, the clamp."""
    attrs = problem.attrs
    z_y = attrs.dtype.zero_point if isinstance(attrs.dtype, QuantizedDType) else 0
    return (*map(np.int32, _zeros(problem)), *map(f32, (attrs.m, attrs.lo, attrs.hi)), np.int32(z_y))


# ---------------------------------------------------------------- any GPU


def _any_program(a: Any, r: Any, y: Any) -> Program:
    narrow = storage_of(a).itemsize == storage_of(r).itemsize == 1
    types = {name: type_name(storage_of(dtype)) for name, dtype in (("AT", a), ("BT", r), ("OUT", y))}
    return program("int_products.cu", BYTES=int(narrow), **types)


@functools.lru_cache(maxsize=4096)
def _any_launch(problem: Problem) -> tuple[Program, _Shape, tuple[Any, ...]]:
    (a, r), attrs, shape = problem.inputs, problem.attrs, _shape_of(problem)
    steps_a = (1, a.shape[-1]) if attrs.transpose_a else (a.shape[-1], 1)
    steps_r = (r.shape[-1], 1) if attrs.transpose_b else (1, r.shape[-1])
    sizes = map(np.int32, (math.prod(shape.stacks), shape.rows, shape.columns, shape.depth))
    numbers = (*sizes, *map(np.int64, (*steps_a, *steps_r)), *_tail(problem))
    return _any_program(a.dtype, r.dtype, problem.outputs[0].dtype), shape, numbers


def _begins(runtime: Runtime, own: tuple[int, ...], size: int, stacks: tuple[int, ...]) -> DeviceArray:
    return constant(runtime, ("places", own, size, stacks), lambda: _places(own, size, stacks))


def _product(problem: Problem, a: DeviceArray, r: DeviceArray) -> DeviceArray:
    unit, shape, numbers = _any_launch(problem)
    out, runtime = problem.outputs[0], a.runtime
    y = runtime.empty(out.shape, storage_of(out.dtype))
    if y.size:
        sizes = (shape.rows * shape.depth, shape.columns * shape.depth)
        owns = (shape.a_own, shape.r_own)
        places = (_begins(runtime, own, size, shape.stacks) for own, size in zip(owns, sizes, strict=True))
        runtime.launch(unit, "cuda_qmatmul", _grid(shape), 256, (a, r, y, *places, *numbers))
    return y


# ---------------------------------------------------------------- tensor cores


def _mma_program(a: Any, r: Any, y: Any, zeros: tuple[int, int]) -> Program:
    stored = storage_of(y)
    types = {"AT": type_name(storage_of(a)), "BT": type_name(storage_of(r))}
    types["OUT"] = "u8" if stored.itemsize == 1 else type_name(stored)
    return program("int_product_mma.cu", SUMS_A=int(zeros[1] != 0), SUMS_B=int(zeros[0] != 0), **types)


@functools.lru_cache(maxsize=4096)
def _mma_launch(problem: Problem) -> tuple[Program, _Shape, int, tuple[Any, ...]]:
    (a, r), shape = problem.inputs, _shape_of(problem)
    pitch = -(-shape.depth // _GRAIN) * _GRAIN
    sizes = (*map(np.int32, (math.prod(shape.stacks), shape.rows, shape.columns, shape.depth)), np.int64(pitch))
    unit = _mma_program(a.dtype, r.dtype, problem.outputs[0].dtype, _zeros(problem))
    return unit, shape, pitch, (*sizes, *_tail(problem))


def _deep(x: DeviceArray, own: tuple[int, ...], rows: int, depth: int, pitch: int, *, turned: bool) -> DeviceArray:
    """Matrices [rows, depth], in memory [depth, rows] if `turned`, as u8 [rows, pitch] with zeros behind."""
    x = x.view(np.uint8)
    if turned:
        return int_layout.turned(x, math.prod(own), depth, rows, pitch)
    return x if pitch == depth else int_layout.wider(x, pitch)


def _product_mma(problem: Problem, a: DeviceArray, r: DeviceArray) -> DeviceArray:
    unit, shape, pitch, numbers = _mma_launch(problem)
    out, runtime, attrs = problem.outputs[0], a.runtime, problem.attrs
    y = runtime.empty(out.shape, storage_of(out.dtype))
    if not y.size:
        return y
    if runtime.architecture < _WITH_MMA or not aligned(a, r):
        return _product(problem, a, r)
    left = _deep(a, shape.a_own, shape.rows, shape.depth, pitch, turned=attrs.transpose_a)
    right = _deep(r, shape.r_own, shape.columns, shape.depth, pitch, turned=not attrs.transpose_b)
    owns, sizes = (shape.a_own, shape.r_own), (shape.rows * pitch, shape.columns * pitch)
    places = (_begins(runtime, own, size, shape.stacks) for own, size in zip(owns, sizes, strict=True))
    result = y.view(np.uint8) if y.dtype.itemsize == 1 else y
    runtime.launch(unit, "cuda_qmatmul_mma", _grid(shape), 128, (left, right, result, *places, *numbers))
    return y


def _not_for_mma(problem: Problem) -> str | None:
    if any(known_quantized(s.dtype).itemsize > 1 for s in problem.inputs):
        return "operands of 16 bits"
    return None if _shape_of(problem).depth else "no depth"


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "qmatmul": (
        EagerKernel("cuda_qmatmul_mma", _product_mma, _not_for_mma),
        EagerKernel("cuda_qmatmul", _product),
    )
}


def programs() -> Iterator[Program]:
    """Every program of operands of 8 bits, and of 16 beside 16."""
    eight, wide, real = (np.dtype(np.uint8), np.dtype(np.int8)), np.dtype(np.int16), np.dtype(np.float32)
    for a, r in itertools.product(eight, eight):
        yield from (_any_program(a, r, y) for y in (*eight, real))
        yield from (_mma_program(a, r, eight[0], zeros) for zeros in ((0, 0), (0, 1), (1, 0), (1, 1)))
        yield _mma_program(a, r, real, (1, 1))
    yield from (_any_program(wide, wide, y) for y in (wide, real))
