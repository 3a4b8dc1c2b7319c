"""Memory-bound kernels of training, batch statistics and gradients, in one pass where NumPy takes several."""

from __future__ import annotations

import numpy as np

from megengine.core.text import counted
from megengine.kernels import _core, memory
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.native import empty_for_step, from_step, to_step
from megengine.kernels.problem import Problem, float32_only


def _channels_last(problem: Problem) -> str | None:
    if problem.inputs[0].ndim not in (2, 4):
        return f"{counted(problem.inputs[0].ndim, 'axis')}; only [N,C] and [N,C,H,W] have channels last in a step"
    return float32_only(problem)


def _batch_norm(problem: Problem, x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> tuple[np.ndarray, ...]:
    y, mean, var = empty_for_step(problem.outputs[0]), np.empty_like(scale, order="C"), np.empty_like(scale, order="C")
    _core.batch_norm(to_step(x), to_step(scale), to_step(bias), problem.attrs.eps, y, mean, var)
    return from_step(y), mean, var


def _batch_norm_backward(problem: Problem, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    dx, dscale, dbias = (empty_for_step(spec) for spec in problem.outputs)
    _core.batch_norm_backward(*map(to_step, arrays), problem.attrs.eps, dx, dscale, dbias)
    return from_step(dx), dscale, dbias


def _relu_backward(problem: Problem, ct: np.ndarray, y: np.ndarray) -> np.ndarray:
    """In the order in which y lies in memory."""
    y = y if y.flags.forc or y.ravel(order="K").base is not None else np.ascontiguousarray(y)
    if ct.strides != y.strides:
        moved = memory.empty_like(y)
        moved[...] = ct
        ct = moved
    dx = memory.empty_like(y)
    _core.relu_backward(ct.ravel(order="K"), y.ravel(order="K"), dx.ravel(order="K"))
    return dx


def _max_pool_backward(problem: Problem, ct: np.ndarray, x: np.ndarray) -> np.ndarray:
    a, (n, c, h, w) = problem.attrs, x.shape
    (top, _), (left, _) = a.padding
    dx = empty_for_step(problem.outputs[0])
    _core.max_pool_backward(to_step(ct), to_step(x), dx, [n, h, w, c, *ct.shape[2:], *a.kernel, *a.stride, top, left])
    return from_step(dx)


own_batch_norm_training = EagerKernel("own_batch_norm_training", _batch_norm, _channels_last)
own_batch_norm_training_backward = EagerKernel("own_batch_norm_training_backward", _batch_norm_backward, _channels_last)
own_relu_backward = EagerKernel("own_relu_backward", _relu_backward, float32_only)
own_max_pool2d_backward = EagerKernel("own_max_pool2d_backward", _max_pool_backward, float32_only)
