"""Memory of large results, kept for the next one: fresh pages cost as much as writing them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from megengine.kernels import _core
from megengine.kernels.registry import Kernel, Problem, family

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
    made = empty(tuple(array.shape[axis] for axis in order), array.dtype)
    return made.transpose(np.argsort(order))


def release() -> int:
    """Give kept blocks back to the system; returns their bytes."""
    return _core.clear_kept()


# ---------------------------------------------------------------- large elementwise results


def _large(problem: Problem) -> str | None:
    shapes = {s.shape for s in problem.inputs}
    if len(shapes) > 1 or any(s.dtype != np.float32 for s in problem.inputs):
        return "not float32 operands of one shape"
    return None if problem.inputs[0].size * 4 >= LARGE else f"less than {LARGE} bytes"


def _into_kept(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    return lambda problem, *arrays: function(*arrays, out=empty_like(arrays[0]))


for _op, _function in (
    ("add", np.add),
    ("sub", np.subtract),
    ("mul", np.multiply),
    ("relu", lambda x, out: np.maximum(x, 0, out=out)),
):
    family(_op).add(Kernel(f"numpy_large_{_op}", usable=_large, run=_into_kept(_function)))
