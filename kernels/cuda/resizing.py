"""Pictures in other sizes, and the gradients: resize, resize_backward."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, bfloat16
from megengine.core.text import counted
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Runtime
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference import integer
from megengine.kernels.reference.resize import taps

_MOST_AXES = 3
_HALVES = (np.dtype(np.float16), bfloat16)
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64), *_HALVES)
_INTEGERS = (np.dtype(np.int8), np.dtype(np.uint8))


@functools.lru_cache(maxsize=256)
def _tables(runtime: Runtime, n: int, out: int, mode: str, corners: bool, weights: np.dtype, axes: int) -> Any:
    """Indices and weights along an axis on the device; whole weights for the dtype int32."""
    index, weight = taps(n, out, mode, corners)
    if weights == np.int32:
        weight = integer.whole_weights(weight, axes)
    return runtime.upload(index.astype(np.int32)), runtime.upload(weight.astype(weights))


def _program(dtype: np.dtype, axes: int) -> Program:
    if dtype in _INTEGERS:
        return program("resizing.cu", TYPE=type_name(dtype), WEIGHT="int", SUM="int", AXES=axes, WHOLE=1)
    wide = "double" if dtype == np.float64 else "float"
    return program("resizing.cu", TYPE=type_name(dtype), WEIGHT=wide, SUM=wide, AXES=axes)


@functools.lru_cache(maxsize=4096)
def _sizes(of_x: tuple[int, ...], size: tuple[int, ...], taps_: int, inner: int) -> np.ndarray:
    fields = [("taps", "i4"), ("inner", "i4"), *((name, "i4", (len(size),)) for name in ("from", "to"))]
    made = np.zeros((), np.dtype(fields))
    made["taps"], made["inner"], made["from"], made["to"] = taps_, inner, of_x, size
    return made


def _resize(problem: Problem, x: DeviceArray, *, last: bool = False) -> DeviceArray:
    """The picture in another size; with `last` of x [N,H,W,C] -> [N,H,W,C], where the problem says [N,C,H,W]."""
    attrs, spec = problem.attrs, problem.outputs[0]
    size, runtime, of_x = attrs["size"], x.runtime, problem.inputs[0].shape
    out = runtime.empty((spec.shape[0], *size, spec.shape[1]) if last else spec.shape, x.dtype)
    axes, whole = len(size), x.dtype in _INTEGERS
    weights = np.dtype(np.int32 if whole else np.float64 if x.dtype == np.float64 else np.float32)
    lengths = zip(of_x[2:], size, strict=True)
    tables = [_tables(runtime, n, m, attrs["mode"], attrs["corners"], weights, axes) for n, m in lengths]
    missing = [None] * (_MOST_AXES - axes)
    sizes = _sizes(of_x[2:], size, tables[0][0].shape[1], of_x[1] if last else 1)
    arguments = [out, x, *(t[0] for t in tables), *missing, *(t[1] for t in tables), *missing, sizes]
    kernel = "resize"
    if whole:
        kernel, scale = "resize_whole", _output(spec.dtype)
        arguments += [np.int32(n) for n in (integer.resize_bits(axes) * axes, *scale)]
    runtime.each(_program(x.dtype, axes), kernel, out.size, (*arguments, np.int64(out.size)))
    return out


def _output(dtype: Any) -> tuple[int, int, int]:
    """The zero point, and the ends of the range around it."""
    return dtype.zero_point, dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point


@functools.lru_cache(maxsize=256)
def _entries(runtime: Runtime, n: int, out: int, mode: str, corners: bool, dtype: np.dtype) -> tuple[DeviceArray, ...]:
    """What each element of an axis of length n gets from the `out` ones: starts, indices and weights.

    In the order in which the reference adds: by tap, then by index.
    """
    index, weight = taps(n, out, mode, corners)
    target, values = index.T.reshape(-1), weight.T.reshape(-1)
    source = np.tile(np.arange(out), index.shape[1])
    order = np.argsort(target, kind="stable")
    starts = np.searchsorted(target[order], np.arange(n + 1))
    arrays = starts.astype(np.int32), source[order].astype(np.int32), values[order].astype(dtype)
    return tuple(runtime.upload(a) for a in arrays)


def _resize_backward(problem: Problem, ct: DeviceArray) -> DeviceArray:
    """Axis by axis, as the reference does."""
    attrs, runtime = problem.attrs, ct.runtime
    code = program("sparse_rows.cu", TYPE=type_name(ct.dtype))
    for axis, n in enumerate(attrs["size"], 2):
        length, inner = ct.shape[axis], math.prod(ct.shape[axis + 1 :])
        out = runtime.empty((*ct.shape[:axis], n, *ct.shape[axis + 1 :]), ct.dtype)
        entries = _entries(runtime, n, length, attrs["mode"], attrs["corners"], ct.dtype)
        sizes = (np.int32(n), np.int64(length), np.int64(inner), np.int64(out.size))
        runtime.each(code, "sum_entries", out.size, (out, ct, *entries, *sizes))
        ct = out
    return ct


def _few_axes(problem: Problem) -> str | None:
    """Refuses more axes than three, and types that pictures do not have."""
    dtype, axes = problem.inputs[0].dtype, len(problem.attrs["size"])
    if axes > _MOST_AXES:
        return f"axes that are resized: {axes}; at most {_MOST_AXES}"
    known = dtype.storage in _INTEGERS if isinstance(dtype, QuantizedDType) else dtype in _FLOATS
    return None if known else f"pictures of {dtype}"


def _pictures(problem: Problem) -> str | None:
    """Refuses what has no channels-last form: others than two axes of space."""
    axes = len(problem.attrs["size"])
    return _few_axes(problem) if axes == 2 else f"{counted(axes, 'axis')} in rows"


def _plain(problem: Problem) -> str | None:
    """Leaves halves to float32, which the dispatch converts to: results between the axes are not rounded."""
    dtype = problem.inputs[0].dtype
    return None if dtype in (np.float32, np.float64) else f"{dtype} is converted to float32"


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    for axes in range(1, _MOST_AXES + 1):
        for dtype in (*_FLOATS, *_INTEGERS):
            yield _program(dtype, axes)
    for name in ("float", "double"):
        yield program("sparse_rows.cu", TYPE=name)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "resize": (EagerKernel("cuda_resize", _resize, _few_axes),),
    "resize_backward": (EagerKernel("cuda_resize_backward", _resize_backward, _plain),),
}
LAST = {"resize": (EagerKernel("cuda_resize_last", functools.partial(_resize, last=True), _pictures),)}
