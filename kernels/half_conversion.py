"""float16 and bfloat16: what other ops compute in float32, and conversions.

Ops compute on such numbers as on the float32 numbers that they are, and round each result once, to the nearest, ties to
even.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.kernels import _core, memory
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.problem import Problem

HALVES = frozenset({np.dtype(np.float16), bfloat16})
_FLOAT32 = np.dtype(np.float32)


def wide(spec: TensorSpec) -> TensorSpec:
    """The spec, with float32 for a half."""
    return TensorSpec(spec.shape, _FLOAT32, spec.device) if spec.dtype in HALVES else spec


def widened(problem: Problem) -> Problem:
    """The same problem of float32 numbers."""
    return Problem(problem.op, map(wide, problem.inputs), map(wide, problem.outputs), problem.attrs)


def converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The numbers in another type, in the order in which they lie in memory. Takes what `has_elementwise` casts."""
    array = np.asarray(array)
    if array.dtype == dtype:
        return array
    channels_last = array.ndim == 4 and array.transpose(0, 2, 3, 1).flags.c_contiguous
    source = np.asarray(array.transpose(0, 2, 3, 1) if channels_last else array, order="C")
    out = memory.empty(source.shape, dtype)
    if out.size:
        _core.convert(memory.bits(source), source.dtype.name, memory.bits(out), dtype.name)
    return out.transpose(0, 3, 1, 2) if channels_last else out


_LEAST = 2048  # elements; below, the call costs more than the conversion


def _usable(problem: Problem) -> str | None:
    source, target = problem.inputs[0].dtype, problem.attrs.dtype
    if source not in HALVES and target not in HALVES:
        return f"{source} to {target}: neither is a half"
    if problem.inputs[0].size < _LEAST:
        return f"{counted(problem.inputs[0].size, 'element')}: NumPy takes less"
    known = _core.has_elementwise("cast", str(source), str(target))
    return None if known else f"cast of {source} to {target}"


def _cast(problem: Problem, array: np.ndarray) -> Any:
    return converted(array, problem.attrs.dtype)


own_half_cast = EagerKernel("own_half_cast", _cast, _usable)
