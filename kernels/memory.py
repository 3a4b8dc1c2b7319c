"""Memory of large results, kept for reuse: getting new pages costs as much as writing them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.kernels import _core

LARGE = 1 << 20  # bytes; smaller arrays come from NumPy, whose allocator reuses them


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised C-contiguous array, aligned to pages where it is large."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size < LARGE:
        return np.empty(shape, dtype)
    return np.frombuffer(_core.Block(size), dtype).reshape(shape)


def empty_like(array: np.ndarray) -> np.ndarray:
    """An uninitialised array of the same shape and dtype, and the same order in memory where `array` has no gaps."""
    if array.nbytes < LARGE:
        return np.empty_like(array)
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    return empty(tuple(array.shape[axis] for axis in order), array.dtype).transpose(np.argsort(order))


def bits(array: np.ndarray) -> np.ndarray:
    """The array as native code takes it: bfloat16, which is no type of NumPy's, as integers of its bits."""
    return array.view(np.uint16) if array.dtype == bfloat16 else array


def release() -> int:
    """Give kept blocks back to the system; returns their bytes."""
    return _core.clear_kept()
