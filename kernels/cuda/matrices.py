"""Inverses, determinants and singular values of small matrices: a block of threads for each."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from megengine.core.errors import OptionError
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.sources import Program, program, type_name
from megengine.kernels.kernel import EagerKernel, Kernel
from megengine.kernels.problem import Problem

_THREADS = 256
_LARGEST = 1 << 15  # of a side: places within a matrix are numbered in 32 bits


def _singular(number: int) -> Exception:
    return OptionError("matinv: a matrix is singular; expected matrices of full rank")


def _not_finite(number: int) -> Exception:
    return OptionError("svd: inp has elements that are infinite or not a number; expected finite ones")


def _inverse(problem: Problem, x: DeviceArray) -> DeviceArray:
    runtime, n = x.runtime, x.shape[-1]
    out = runtime.empty(x.shape, x.dtype)
    if not out.size:
        return out
    count = x.size // (n * n)
    work, swaps = runtime.empty((x.size,), np.float64), runtime.empty((count, n), np.int32)
    arguments = (out, work, swaps, x, np.int32(n), runtime.refusal(_singular))
    runtime.launch(program("matrices.cu", TYPE=type_name(x.dtype)), "invert", count, _THREADS, arguments)
    return out


def _determinant(problem: Problem, x: DeviceArray) -> DeviceArray:
    runtime, n = x.runtime, x.shape[-1]
    out, work = runtime.empty(x.shape[:-2], x.dtype), runtime.empty((x.size,), np.float64)
    code = program("matrices.cu", TYPE=type_name(x.dtype))
    runtime.launch(code, "determinant", out.size, _THREADS, (out, work, x, np.int32(n)))
    return out


def _svd(problem: Problem, x: DeviceArray) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    runtime = x.runtime
    u, values, v = (runtime.empty(spec.shape, x.dtype) for spec in problem.outputs)
    *lead, m, n = x.shape
    count, (short, long) = math.prod(lead), sorted((m, n))
    total = long if problem.attrs["full"] else short
    work = runtime.empty((count, (short + total) * long + short * short + short), np.float64)
    orders = runtime.empty((count, short), np.int32)
    sizes = (np.int32(m), np.int32(n), np.int32(total))
    arguments = (u, values, v, work, orders, x, *sizes, runtime.refusal(_not_finite))
    runtime.launch(program("singular.cu", TYPE=type_name(x.dtype)), "decompose", count, _THREADS, arguments)
    return u, values, v


def _usable(problem: Problem) -> str | None:
    """Refuses numbers that are not float32 or float64 (halves are converted), and very large matrices."""
    spec = problem.inputs[0]
    if spec.dtype not in (np.float32, np.float64):
        return f"matrices of {spec.dtype}; float32 and float64 are taken"
    side = max(spec.shape[-2:])
    return None if side <= _LARGEST else f"a matrix with {side} rows or columns; at most {_LARGEST}"


def programs() -> Iterator[Program]:
    """Every program that these kernels launch."""
    for name in ("float", "double"):
        yield program("matrices.cu", TYPE=name)
        yield program("singular.cu", TYPE=name)


KERNELS: dict[str, tuple[Kernel, ...]] = {
    "matinv": (EagerKernel("cuda_matinv", _inverse, _usable),),
    "det": (EagerKernel("cuda_det", _determinant, _usable),),
    "svd": (EagerKernel("cuda_svd", _svd, _usable),),
}
