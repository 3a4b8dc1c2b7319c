"""Own pooling of channels-last images: float32, bfloat16, and maxima of float16; planes in rows over up to three axes.

The same bits at every level.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.half_conversion import HALVES
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import long_steps, step_kernel
from megengine.kernels.problem import Problem, float32_only, no_elements

_MAX = (np.dtype(np.float32), bfloat16, np.dtype(np.float16))
_MEAN = _MAX[:2]
_LARGEST = 1 << 16  # numbers of a plane in rows that lies beside its means, with padding


def _usable(problem: Problem) -> str | None:
    x, largest = problem.inputs[0], problem.op == "max_pool2d"
    dtype = x.dtype
    if x.shape[1] == 1 and dtype in HALVES:
        return "planes of halves are pooled in float32, whose neighbours are taken a vector at a time"
    if dtype not in (_MAX if largest else _MEAN):
        return f"no {'maxima' if largest else 'means'} of {dtype}"
    return no_elements(problem)


def _lengths(problem: Problem) -> list[int]:
    a, (n, c, *image), out = problem.attrs, problem.inputs[0].shape, problem.outputs[0].shape[2:]
    return [n, *image, c, *out, *a.kernel, *a.stride, *(first for first, _ in a.padding)]


def _planes_usable(problem: Problem) -> str | None:
    (*_, h, w), dtype = problem.inputs[0].shape, problem.inputs[0].dtype
    if problem.op == "avg_pool2d" and h * w > _LARGEST:
        return f"planes of {counted(h * w, 'number')}; expected at most {_LARGEST}"
    return no_elements(problem) if dtype in _MEAN else f"no pooling of planes of {dtype}"


def _of_planes(problem: Problem) -> tuple[list[tuple[int, ...]], int]:
    """Lengths of windows over one to three axes of planes, all as three; how many planes there are."""
    a, axes = problem.attrs, len(problem.attrs.kernel)
    ones, none = (1,) * (3 - axes), (0,) * (3 - axes)
    x, out = problem.inputs[0].shape, problem.outputs[0].shape
    apart = a.get("dilation", (1,) * axes)
    lengths = [(*ones, *n) for n in (x[-axes:], out[-axes:], a.kernel, a.stride, apart)]
    return [*lengths, (*none, *(before for before, _ in a.padding))], math.prod(x[:-axes])


def _planes_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    half = problem.inputs[0].dtype == bfloat16
    if problem.op == "max_pool2d":
        return _core.max_planes_step(*_of_planes(problem), half, threads)
    return _core.mean_planes_step(_lengths(problem), half, problem.attrs.count_include_pad, threads)


def _step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    a, x, largest = problem.attrs, problem.inputs[0], problem.op == "max_pool2d"
    count_padding = bool(a.get("count_include_pad", False))
    if x.shape[1] == 1 and x.dtype == np.float32:  # images of one channel are planes: neighbours lie side by side
        places = _of_planes(problem)
        if largest:
            return _core.max_planes_step(*places, False, threads)
        return _core.planes_pool_step(*places, count_padding, False, threads)
    return _core.pool_step(_lengths(problem), x.dtype.name, largest, count_padding, threads)


def _pool_usable(problem: Problem) -> str | None:
    x, out = problem.inputs[0], problem.outputs[0]
    if x.ndim == 4:
        return "values with 4 axes lie channels-last"
    if x.dtype != bfloat16:
        return float32_only(problem) or long_steps(problem)
    longest = max(x.shape[-1], out.shape[-1])
    if not problem.attrs.largest and longest > _core.longest_pooled_row:
        return (
            f"rows of {counted(longest, 'number')}; expected at most {_core.longest_pooled_row} for means in bfloat16"
        )
    return long_steps(problem)


def _pool_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    half, places = problem.inputs[0].dtype == bfloat16, _of_planes(problem)
    if problem.attrs.largest:
        return _core.max_planes_step(*places, half, threads)
    return _core.planes_pool_step(*places, bool(problem.attrs.count_include_pad), half, threads)


own_max_pool2d = step_kernel("own_max_pool2d", _step, _usable)
own_avg_pool2d = step_kernel("own_avg_pool2d", _step, _usable)
own_planes_max_pool2d = StepKernel("own_planes_max_pool2d", _planes_step, _planes_usable, in_rows=True)
own_planes_avg_pool2d = StepKernel("own_planes_avg_pool2d", _planes_step, _planes_usable, in_rows=True)
own_pool = StepKernel("own_pool", _pool_step, _pool_usable)
