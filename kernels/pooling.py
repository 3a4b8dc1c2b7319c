"""Own pooling of channels-last images: float32, bfloat16, and maxima of float16; planes in rows.

The same bits at every level.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.half_conversion import HALVES
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import step_kernel
from megengine.kernels.problem import Problem, no_elements

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


def _planes_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    return _core.pool_rows_step(
        lengths=_lengths(problem),
        half=problem.inputs[0].dtype == bfloat16,
        max=problem.op == "max_pool2d",
        count_padding=bool(problem.attrs.get("count_include_pad", False)),
        threads=threads,
    )


def _step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    a, x, out = problem.attrs, problem.inputs[0], problem.outputs[0]
    lengths = _lengths(problem)
    largest, count_padding = problem.op == "max_pool2d", bool(a.get("count_include_pad", False))
    n, c, *image = x.shape
    before = [first for first, _ in a.padding]
    if c == 1 and x.dtype == np.float32:  # images of one channel are planes, whose neighbours lie side by side
        axes = ((1, *v) for v in (image, out.shape[2:], a.kernel, a.stride, (1, 1)))
        return _core.planes_pool_step([*axes, (0, *before)], n, largest, count_padding, threads)
    return _core.pool_step(lengths, x.dtype.name, largest, count_padding, threads)


own_max_pool2d = step_kernel("own_max_pool2d", _step, _usable)
own_avg_pool2d = step_kernel("own_avg_pool2d", _step, _usable)
own_planes_max_pool2d = StepKernel("own_planes_max_pool2d", _planes_step, _planes_usable, in_rows=True)
own_planes_avg_pool2d = StepKernel("own_planes_avg_pool2d", _planes_step, _planes_usable, in_rows=True)
