"""NVIDIA's libraries on a device: cuBLAS for products, cuDNN for convolutions. Emulated devices have none."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.errors import DeviceError
from megengine.kernels.cuda import cudnn_graphs
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.cublas import load
from megengine.kernels.cuda.tensor_cores import Precision

# cuBLAS's numbers
_PLAIN, _TURNED = 0, 1
_REAL_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.float16): 2, bfloat16: 14}
_SUMS_32, _SUMS_64, _SUMS_TF32 = 68, 70, 77
_ANY_ALGORITHM = -1
_NO_REDUCED_SUMS = 16
_MOST = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Gemm:
    """A product as cuBLAS takes it, by columns: result [m, n] of the operands `first` [m, k] and `second` [k, n].

    Row by row a result is the transposed product: the first operand is our right one. Each operand has whether it is
    turned, the step to its next column, and the step to the next matrix, in elements.
    """

    m: int
    n: int
    k: int
    first: tuple[int, int, int]
    second: tuple[int, int, int]
    result: tuple[int, int]
    count: int


def _operand(steps: tuple[int, int], sizes: tuple[int, int], far: int, *, first: bool) -> tuple[int, int, int] | None:
    """An operand with steps and sizes across lines and along sums; None where neither step is 1, or columns overlap."""
    (across, along), (lines, depth) = steps, sizes
    if (across == 1 or lines == 1) and along >= lines:
        return (_PLAIN if first else _TURNED), along, far
    if (along == 1 or depth == 1) and across >= depth:
        return (_TURNED if first else _PLAIN), across, far
    return None


def gemm_of(product: Any) -> Gemm | None:
    """How cuBLAS computes a simplified product (products.Product); None where it cannot, with one call."""
    if len(product.stack) > 1 or not product.depth:
        return None
    count, left, right, out = product.stack[0] if product.stack else (1, 0, 0, 0)
    rows, columns, depth = product.rows, product.columns, product.depth
    first = _operand(product.right, (columns, depth), right, first=True)
    second = _operand(product.left, (rows, depth), left, first=False)
    step = product.out[0]
    if first is None or second is None or (product.out[1] != 1 and columns > 1) or step < columns:
        return None
    if max(rows, columns, depth, first[1], second[1], step, count) > _MOST:
        return None
    return Gemm(columns, rows, depth, first, second, (step, out), count)


class Libraries:
    """The libraries of one device: `blas` is cuBLAS, `graphs` are cuDNN's; None for a missing one."""

    def __init__(self, blas: Any, graphs: cudnn_graphs.Graphs | None, stream: Callable[[], int]) -> None:
        self._blas, self.graphs, self._stream = blas, graphs, stream
        self._lock = threading.Lock()  # a call of the library lets other threads run, and the handle has one stream
        self.multiplies = blas is not None
        if self.multiplies:
            self._handle = blas.create()
            blas.set_math_mode(self._handle, _NO_REDUCED_SUMS)  # halves are summed as float32 from first to last
        self._numbers: dict[tuple[float, np.dtype], np.ndarray] = {}  # in main memory, where cuBLAS reads them

    def meet_stream(self) -> None:
        """Let the handles go to the present stream, before launches on it are recorded."""
        if self.multiplies:
            with self._lock:
                self._blas.set_stream(self._handle, self._stream())
        if self.graphs is not None:
            self.graphs.meet_stream()

    def gemm(
        self, gemm: Gemm, left: DeviceArray, right: DeviceArray, out: DeviceArray, scale: float = 1.0
    ) -> DeviceArray:
        """Launch a product of matrices of one float dtype; sums of halves may be written as float32."""
        kind, total, sums = _kinds(left.dtype, Precision.tf32)
        out.runtime.name_memory((left, right, out))
        turned_first, step_first, far_first = gemm.first
        turned_second, step_second, far_second = gemm.second
        step_out, far_out = gemm.result
        with self._lock:
            self._blas.set_stream(self._handle, self._stream())
            self._blas.gemm(
                self._handle, turned_first, turned_second, gemm.m, gemm.n, gemm.k,
                self._number(scale, total), right.address, kind, step_first, far_first,
                left.address, kind, step_second, far_second,
                self._number(0.0, total), out.address, _REAL_TYPES[out.dtype], step_out, far_out,
                gemm.count, sums, _ANY_ALGORITHM,
            )  # fmt: skip
        return out

    def _number(self, value: float, dtype: np.dtype) -> int:
        key = (value, dtype)
        if key not in self._numbers:
            self._numbers[key] = np.asarray(value, dtype)
        return self._numbers[key].ctypes.data


@functools.cache
def _kinds(dtype: np.dtype, tf32: bool) -> tuple[int, np.dtype, int]:
    """CuBLAS's number of a dtype, the dtype of its sums, and cuBLAS's number of how they are made."""
    if dtype == np.float64:
        return _REAL_TYPES[dtype], dtype, _SUMS_64
    return _REAL_TYPES[dtype], np.dtype(np.float32), _SUMS_TF32 if tf32 and dtype == np.float32 else _SUMS_32


@functools.cache
def takes(dtype: np.dtype) -> bool:
    """Whether cuBLAS multiplies numbers of a dtype here."""
    return np.dtype(dtype) in _REAL_TYPES


def of_device(stream: Callable[[], int], kind: str = "") -> Libraries:
    """The libraries of the current device that are installed; `stream()` is the stream that launches go to.

    `kind` is the name of GPUs of its kind.
    """
    return Libraries(_cublas(), _cudnn(stream, kind), stream)


def _cublas() -> Any:
    """CuBLAS; None where it is not installed, or does not load."""
    try:
        from cupy_backends.cuda.libs import cublas as loaded  # noqa: F401  (finds the library that wheels install)

        return load()
    except (ImportError, DeviceError):
        return None


def cudnn_version() -> int:
    """The version of cuDNN that convolutions use, 91900 for 9.19.0; 0 where it is not installed."""
    if not cudnn_graphs.installed():
        return 0
    try:
        import cudnn

        return int(cudnn.backend_version())
    except (ImportError, OSError, RuntimeError):
        return 0


def _cudnn(stream: Callable[[], int], kind: str) -> cudnn_graphs.Graphs | None:
    """CuDNN's graphs; None without the package, or without the library that it loads."""
    if not cudnn_graphs.installed():
        return None
    try:
        import cudnn

        return cudnn_graphs.Graphs(cudnn, stream, kind)
    except (ImportError, OSError, RuntimeError):
        return None
