"""CUDA kernels through CuPy: the sources in csrc/cuda, compiled at run time, and cuBLAS for matrix products.

CuPy is optional and imported where it is used; without it, or without a GPU, `available()` says why.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import numpy as np

from megengine.core.errors import DeviceError

_ENTRY = re.compile(r"^(UNARY|BINARY)\((\w+),", re.MULTILINE)
_THREADS = 256


@functools.cache
def unavailable_reason() -> str | None:
    """None when CUDA kernels can run here, else the reason in words."""
    try:
        import cupy
    except ImportError:
        return "CuPy is not installed (pip install cupy-cuda13x)"
    try:
        if cupy.cuda.runtime.getDeviceCount() == 0:
            return "no CUDA device"
    except cupy.cuda.runtime.CUDARuntimeError as exc:
        return f"CUDA does not start: {exc}"
    return None


def available() -> bool:
    """True if CuPy is installed and a CUDA device answers."""
    return unavailable_reason() is None


@functools.cache
def source() -> str:
    """Text of the elementwise CUDA source."""
    from importlib import resources  # takes long to import

    return (resources.files("megengine.kernels") / "cuda" / "elementwise.cu").read_text()


@functools.cache
def entries() -> dict[str, int]:
    """Op name -> number of operands, derived from the UNARY and BINARY lines of the source."""
    return {name: 1 if kind == "UNARY" else 2 for kind, name in _ENTRY.findall(source())}


@functools.cache
def _module() -> Any:
    reason = unavailable_reason()
    if reason is not None:
        raise DeviceError(f"CUDA kernel asked for, but {reason}; use the CPU")
    import cupy

    return cupy.RawModule(code=source(), options=("--fmad=false",))


def _launch(name: str, count: int, arguments: tuple) -> None:
    blocks = max(1, min((count + _THREADS - 1) // _THREADS, 65535))
    _module().get_function(name)((blocks,), (_THREADS,), arguments)


def elementwise(name: str, *arrays: Any) -> Any:
    """Run the op `name` on float32 CuPy arrays (broadcast against each other); returns a CuPy array.

    Raises DeviceError where CUDA does not run and KeyError for a name without a kernel.
    """
    import cupy

    arity = entries()[name]
    arrays = tuple(cupy.ascontiguousarray(a) for a in cupy.broadcast_arrays(*arrays))
    out = cupy.empty(arrays[0].shape, np.float32)
    if out.size:
        _launch(f"{'unary' if arity == 1 else 'binary'}_{name}", out.size, (*arrays, out, np.int64(out.size)))
    return out


def quantize(x: Any, *, scale: float, zero_point: int, qmin: int, qmax: int) -> Any:
    """float32 CuPy array -> int8 / uint8 CuPy array by the rule of the integer specification."""
    import cupy

    dtype, suffix = (np.uint8, "u8") if qmin >= 0 else (np.int8, "s8")
    x = cupy.ascontiguousarray(x)
    out = cupy.empty(x.shape, dtype)
    if out.size:
        bounds = (np.float32(qmin - zero_point), np.float32(qmax - zero_point))
        scalars = (np.float32(scale), *bounds, np.int32(zero_point), np.int64(out.size))
        _launch(f"quantize_{suffix}", out.size, (x, out, *scalars))
    return out


def matmul(a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False) -> Any:
    """Matrix product of CuPy arrays by cuBLAS; batch axes broadcast."""
    import cupy

    a = cupy.swapaxes(a, -1, -2) if transpose_a else a
    b = cupy.swapaxes(b, -1, -2) if transpose_b else b
    return cupy.matmul(a, b)
