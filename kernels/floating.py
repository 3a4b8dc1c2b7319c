"""Own float kernels: pooling, functions, concatenation, resizing. All instruction sets give the same results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16, storage_of
from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.half_conversion import HALVES
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import in_memory_order
from megengine.kernels.problem import Problem, float32_only, no_elements
from megengine.kernels.reference.resize import taps

_LONG = 64  # bytes of a run of numbers that is copied at once


def _channel_mean_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    x, a = problem.inputs[0], problem.attrs
    channels = x.shape[1]
    half = x.dtype == bfloat16
    return _core.neighbour_mean_step(x.size // channels, channels, a.window, a.before, half, threads)


def _channel_mean_usable(problem: Problem) -> str | None:
    if problem.inputs[0].ndim != 4:
        return "channels do not lie side by side"
    return no_elements(problem) if problem.inputs[0].dtype == bfloat16 else float32_only(problem)


def _concat_usable(problem: Problem) -> str | None:
    ndim, axis = problem.inputs[0].ndim, problem.attrs.axis % problem.inputs[0].ndim
    last = 1 if ndim == 4 else ndim - 1  # the axis that is last in memory
    return f"axis {axis} is not the last one in memory" if axis != last else no_elements(problem)


def _concat_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    axis = problem.attrs.axis
    widths = [s.shape[axis] * storage_of(s.dtype).itemsize for s in problem.inputs]
    return _core.concat_step(problem.inputs[0].size // problem.inputs[0].shape[axis], widths, threads)


def _function_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    return _core.function_step(problem.inputs[0].size, problem.op, problem.attrs.get("slope", 0.0), threads)


def resize_axes(problem: Problem) -> tuple[dict[str, Any], list[np.ndarray]]:
    """How a resize step walks over its input, and for each axis the weights of its neighbours, [lengths, taps]."""
    x, a = problem.inputs[0], problem.attrs
    lengths = x.shape[-len(a.size) :]
    axes = [taps(length, out, a.mode, a.corners) for length, out in zip(lengths, a.size, strict=True)]
    channels_last = x.ndim == 4
    walk = {
        "outer": x.shape[0] if channels_last else math.prod(x.shape[: -len(a.size)]),
        "inner": x.shape[1] if channels_last else 1,
        "lengths": lengths,
        "taps": [index.shape[1] for index, _ in axes],
        "indices": [index.ravel().tolist() for index, _ in axes],
    }
    return walk, [weight for _, weight in axes]


def _resize_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    walk, weights = resize_axes(problem)
    flat = [weight.astype(np.float32).ravel().tolist() for weight in weights]
    dtype = problem.inputs[0].dtype
    picked = storage_of(dtype).itemsize if _picks(problem) else 0
    return _core.resize_step(**walk, weights=flat, threads=threads, picked=picked, half=dtype == bfloat16)


def _picks(problem: Problem) -> bool:
    return problem.attrs.mode == "nearest"


def _repeat_axes(problem: Problem) -> tuple[list[int], list[int], int, int]:
    """Lengths of the axes as memory has them, how often their elements are there, the first and last axis of which
    there are several.
    """
    x, counts = problem.inputs[0].shape, problem.attrs.counts
    order = (0, 2, 3, 1) if len(x) == 4 else range(len(x))
    lengths, times = [x[a] for a in order], [counts[a] for a in order]
    several = [k for k, n in enumerate(times) if n > 1] or [0]
    return lengths, times, several[0], several[-1]


def _repeat_usable(problem: Problem) -> str | None:
    """Numbers of 2 or 4 bytes, or long runs of any."""
    lengths, _, _, last = _repeat_axes(problem) if problem.inputs[0].ndim else ([], [], 0, 0)
    if (size := storage_of(problem.inputs[0].dtype).itemsize) not in (2, 4):
        inner = math.prod(lengths[last + 1 :]) * size
        if inner < _LONG:
            return f"runs of {counted(inner, 'byte')}; expected {_LONG}, or numbers of 2 or 4 bytes"
    return no_elements(problem) if lengths else "no axes"


def _repeat_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """The nearest neighbours of each place along the axes from the first to the last one with several elements."""
    lengths, times, first, last = _repeat_axes(problem)
    axes = range(first, last + 1)
    indices = [[i // times[k] for i in range(lengths[k] * times[k])] for k in axes]
    return _core.resize_step(
        outer=math.prod(lengths[:first]),
        inner=math.prod(lengths[last + 1 :]),
        lengths=[lengths[k] for k in axes],
        taps=[1] * len(axes),
        indices=indices,
        weights=[[1.0] * len(index) for index in indices],
        threads=threads,
        picked=storage_of(problem.inputs[0].dtype).itemsize,
        half=False,
    )


def _resize_usable(problem: Problem) -> str | None:
    dtype = problem.inputs[0].dtype
    halves = dtype == bfloat16 or (dtype in HALVES and _picks(problem))
    return no_elements(problem) if halves else float32_only(problem)


FUNCTIONS = (
    *("exp", "log", "expm1", "log1p", "sin", "cos", "tan", "asin", "acos", "atan"),
    *("sinh", "cosh", "asinh", "acosh", "atanh"),
)  # of one value, that are no activations
# these have no eager form: NumPy is faster, since nothing is copied to channels-last
own_channel_mean = StepKernel("own_channel_mean", _channel_mean_step, _channel_mean_usable)
own_concat = StepKernel("own_concat", _concat_step, _concat_usable)
own_function = StepKernel("own_function", _function_step, float32_only, in_memory_order(_function_step))
own_repeat = StepKernel("own_repeat", _repeat_step, _repeat_usable)
own_resize = StepKernel("own_resize", _resize_step, _resize_usable)
