"""Elementwise ops on large arrays: NumPy's, written to memory that is kept for the next result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from megengine.kernels.kernel import EagerKernel
from megengine.kernels.memory import LARGE, empty_like
from megengine.kernels.problem import Problem


def _large(problem: Problem) -> str | None:
    shapes = {s.shape for s in problem.inputs}
    if len(shapes) > 1 or any(s.dtype != np.float32 for s in problem.inputs):
        return "not float32 operands of one shape"
    return None if problem.inputs[0].size * 4 >= LARGE else f"less than {LARGE} bytes"


def _into_kept(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    return lambda problem, *arrays: function(*arrays, out=empty_like(arrays[0]))


numpy_large_add = EagerKernel("numpy_large_add", _into_kept(np.add), _large)
numpy_large_sub = EagerKernel("numpy_large_sub", _into_kept(np.subtract), _large)
numpy_large_mul = EagerKernel("numpy_large_mul", _into_kept(np.multiply), _large)
numpy_large_relu = EagerKernel("numpy_large_relu", _into_kept(lambda x, out: np.maximum(x, 0, out=out)), _large)
