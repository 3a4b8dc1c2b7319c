"""cuBLAS by its C interface: CuPy's refuses calls while launches are recorded, which the library itself takes."""

from __future__ import annotations

import ctypes
from typing import Any

from megengine.core.errors import DeviceError

_NAMES = ("libcublas.so.13", "libcublas.so.12")
_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p
_OPERAND = (_POINTER, _INT, _INT, _LONG)  # address, type, step to the next column, step to the next matrix
_GEMM = (_POINTER, *[_INT] * 5, _POINTER, *_OPERAND, *_OPERAND, _POINTER, *_OPERAND, _INT, _INT, _INT)


class Cublas:
    """The library, which CuPy has loaded: functions with the names and arguments of its own."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.cublasGemmStridedBatchedEx.argtypes = _GEMM
        library.cublasSetStream_v2.argtypes = (_POINTER, _POINTER)
        library.cublasSetMathMode.argtypes = (_POINTER, _INT)

    def _checked(self, name: str, status: int) -> None:
        if status:
            raise DeviceError(f"cuBLAS: {name} failed with status {status}")

    def create(self) -> int:
        """A handle of the current device."""
        handle = ctypes.c_void_p()
        self._checked("cublasCreate", self._library.cublasCreate_v2(ctypes.byref(handle)))
        return handle.value or 0

    def set_math_mode(self, handle: int, mode: int) -> None:
        """How products are computed."""
        self._checked("cublasSetMathMode", self._library.cublasSetMathMode(handle, mode))

    def set_stream(self, handle: int, stream: int) -> None:
        """Where launches go."""
        self._checked("cublasSetStream", self._library.cublasSetStream_v2(handle, stream))

    def gemm(self, *arguments: int) -> None:
        """Launch cublasGemmStridedBatchedEx."""
        self._checked("cublasGemmStridedBatchedEx", self._library.cublasGemmStridedBatchedEx(*arguments))


def load() -> Cublas:
    """The library. Raises DeviceError where none can be loaded."""
    reasons = []
    for name in _NAMES:
        try:
            return Cublas(ctypes.CDLL(name))
        except OSError as exc:
            reasons.append(str(exc))
    raise DeviceError(f"cuBLAS cannot be loaded: {reasons[0]}")
