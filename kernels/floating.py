"""Own float kernels: pooling, means, clamps, sums, concatenation. Results are the same at every instruction set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.kernels import _core
from megengine.kernels.kernel import MakeStep, StepKernel
from megengine.kernels.native import in_memory_order, step_kernel
from megengine.kernels.problem import Problem, float32_only, no_elements


def _pool_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    a, (n, c, h, w) = problem.attrs, problem.inputs[0].shape
    (top, _), (left, _) = a.padding
    lengths = [n, h, w, c, *problem.outputs[0].shape[2:], *a.kernel, *a.stride, top, left]
    return _core.pool_step(lengths, problem.op == "max_pool2d", bool(a.get("count_include_pad", False)), threads)


def _axes(problem: Problem) -> tuple[int, ...]:
    x, axis = problem.inputs[0], problem.attrs.axis
    return (
        tuple(range(x.ndim))
        if axis is None
        else tuple(a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis))
    )


def _spatial_mean(problem: Problem) -> str | None:
    x, axes = problem.inputs[0], _axes(problem)
    if x.ndim != 4 or axes != (2, 3):
        return f"axes {axes} of {x.ndim}; only height and width of [N,C,H,W]"
    return float32_only(problem)


def _mean_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    n, c, h, w = problem.inputs[0].shape
    return _core.mean_step(n, h * w, c)


def _rows(problem: Problem) -> str | None:
    x, axes = problem.inputs[0], _axes(problem)
    last = (1,) if x.ndim == 4 else tuple(range(x.ndim - len(axes), x.ndim))
    if not axes or tuple(sorted(axes)) != last:
        return f"axes {axes} of {x.ndim} are not the last ones in memory"
    return float32_only(problem)


def _row_sum(*, mean: bool) -> MakeStep:
    def make(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
        x = problem.inputs[0]
        cols = math.prod(x.shape[axis] for axis in _axes(problem))
        return _core.row_sum_step(x.size // cols, cols, float(cols) if mean else 1.0, threads)

    return make


def _clamp(lo: float, hi: float) -> MakeStep:
    return lambda problem, constants, threads: _core.clamp_step(problem.inputs[0].size, lo, hi)


def _same_shape(problem: Problem) -> str | None:
    a, b = problem.inputs
    return f"shapes {a.shape} and {b.shape} broadcast" if a.shape != b.shape else float32_only(problem)


def _binary(*, adds: bool) -> MakeStep:
    return lambda problem, constants, threads: _core.binary_step(problem.inputs[0].size, adds)


def _concat_usable(problem: Problem) -> str | None:
    ndim, axis = problem.inputs[0].ndim, problem.attrs.axis % problem.inputs[0].ndim
    last = 1 if ndim == 4 else ndim - 1  # the axis that is last in memory
    return f"axis {axis} is not the last one in memory" if axis != last else no_elements(problem)


def _concat_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    axis = problem.attrs.axis
    widths = [s.shape[axis] * storage_of(s.dtype).itemsize for s in problem.inputs]
    return _core.concat_step(problem.inputs[0].size // problem.inputs[0].shape[axis], widths)


def _function_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    return _core.function_step(problem.inputs[0].size, problem.op, problem.attrs.get("slope", 0.0), threads)


def _softmax_usable(problem: Problem) -> str | None:
    x = problem.inputs[0]
    last = 1 if x.ndim == 4 else x.ndim - 1
    if problem.attrs.axis % x.ndim != last:
        return f"axis {problem.attrs.axis} is not the last one in memory"
    return float32_only(problem)


def _softmax_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, cols = problem.inputs[0], problem.inputs[0].shape[problem.attrs.axis]
    return _core.softmax_step(x.size // cols, cols)


def _per_channel(problem: Problem) -> str | None:
    a, b = problem.inputs
    if a.ndim != 4 or b.shape not in ((a.shape[0], a.shape[1], 1, 1), (1, a.shape[1], 1, 1)):
        return f"shapes {a.shape} and {b.shape}; only [N,C,H,W] with [N,C,1,1] or [1,C,1,1]"
    return float32_only(problem)


def _channel(*, adds: bool) -> MakeStep:
    def make(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
        (n, c, h, w), b = problem.inputs[0].shape, problem.inputs[1].shape
        return _core.channel_step(n, h * w, c, c if b[0] == n else 0, adds)

    return make


own_max_pool2d = step_kernel("own_max_pool2d", _pool_step, float32_only)
own_avg_pool2d = step_kernel("own_avg_pool2d", _pool_step, float32_only)
# the others have no eager form: NumPy is faster, since nothing is copied to channels-last
own_mean = StepKernel("own_mean", _mean_step, _spatial_mean)
own_row_mean = StepKernel("own_row_mean", _row_sum(mean=True), _rows, free=True)
own_row_sum = StepKernel("own_row_sum", _row_sum(mean=False), _rows, free=True)
own_relu = StepKernel("own_relu", _clamp(0.0, math.inf), float32_only)
own_relu6 = StepKernel("own_relu6", _clamp(0.0, 6.0), float32_only)
own_clip = StepKernel(
    "own_clip",
    lambda problem, constants, threads: _clamp(problem.attrs.lo, problem.attrs.hi)(problem, constants, threads),
    float32_only,
)
own_add = StepKernel("own_add", _binary(adds=True), _same_shape)
own_mul = StepKernel("own_mul", _binary(adds=False), _same_shape)
own_channel_add = StepKernel("own_channel_add", _channel(adds=True), _per_channel)
own_channel_mul = StepKernel("own_channel_mul", _channel(adds=False), _per_channel)
own_concat = StepKernel("own_concat", _concat_step, _concat_usable)
own_function = StepKernel("own_function", _function_step, float32_only, in_memory_order(_function_step))
own_step_function = StepKernel("own_step_function", _function_step, float32_only)  # eager calls: one pass of NumPy
own_softmax = StepKernel("own_softmax", _softmax_step, _softmax_usable, free=True)
