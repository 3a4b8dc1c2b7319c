"""Own kernels of 16-bit values beside 8-bit ones and 8-bit weights: docs/integer-arithmetic.md bit for bit.

A 16-bit tensor has zero point 0. Sums of a layer are int32 here: a layer whose weights may give larger ones is left
to the reference.
"""

from __future__ import annotations

import math

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.text import counted
from megengine.kernels import int8, int8_rows
from megengine.kernels.native import linear_rank, long_steps, step_kernel
from megengine.kernels.problem import Problem

_LARGEST_SUM = 2**31 - 1


def _why_not(dtypes: list[QuantizedDType]) -> str | None:
    """Why the values are not of 8 and 16 bits, with one scale each; None if they are."""
    return "no value of 16 bits" if all(dtype.itemsize == 1 for dtype in dtypes) else _neither(dtypes)


def _neither(dtypes: list[QuantizedDType]) -> str | None:
    for dtype in dtypes:
        wide = dtype.storage == np.int16 and not dtype.zero_point
        if dtype.axis is not None or not (dtype.itemsize == 1 or wide):
            return f"{dtype} has neither 8 bits nor 16 bits with zero point 0, or several scales"
    return None


def _usable(problem: Problem) -> str | None:
    dtypes = [s.dtype for s in (*problem.inputs, *problem.outputs) if isinstance(s.dtype, QuantizedDType)]
    return _why_not(dtypes) or int8.usable_size(problem)


def _pair_usable(problem: Problem) -> str | None:
    a, r = problem.inputs
    return _usable(problem) if a.shape == r.shape else f"shapes {a.shape} and {r.shape} differ"


def _values(problem: Problem) -> list[QuantizedDType]:
    values = (problem.inputs[0], *problem.inputs[5:], *problem.outputs)
    return [s.dtype for s in values if isinstance(s.dtype, QuantizedDType)]


def other_values(problem: Problem) -> str | None:
    """Why the values of a layer are of neither 8 nor 16 bits, or have several scales; None if they are."""
    return _neither(_values(problem))


def _layer_usable(problem: Problem) -> str | None:
    return _why_not(_values(problem)) or long_steps(problem) or int8.usable_size(problem)


def sums_fit(problem: Problem, constants: dict[int, np.ndarray]) -> str | None:
    """Why the sums of a layer may leave int32; None if they do not."""
    x, rows = problem.inputs[0].dtype, constants[1].reshape(len(constants[1]), -1)
    reach = 2 ** (8 * x.itemsize - (x.itemsize > 1))  # of x: above 255 in 8 bits, 32768 in 16
    sums = np.abs(rows.astype(np.int64)).sum(axis=1) * reach + np.abs(constants[2].astype(np.int64))
    most = int(sums.max(initial=0))
    return f"sums may reach {most:.3g}, more than int32 holds" if most > _LARGEST_SUM else None


def _average_usable(problem: Problem) -> str | None:
    x, y = problem.inputs[0], problem.outputs[0]
    count = math.prod(x.shape) // max(math.prod(y.shape), 1) if x.ndim != y.ndim else math.prod(x.shape[2:])
    if 32768 * count > _LARGEST_SUM:
        return f"sums of {counted(count, 'value')} may not fit int32"
    return _usable(problem)


int16_depthwise = step_kernel(
    "int16_depthwise",
    int8.depthwise_step,
    lambda problem: int8.not_depthwise(problem) or _layer_usable(problem),
    packs=int8.WEIGHTS,
    accepts=sums_fit,
)
int16_conv = step_kernel("int16_conv", int8.dense_step, _layer_usable, packs=int8.WEIGHTS, accepts=sums_fit)
int16_linear = step_kernel(
    "int16_linear",
    int8.linear_step,
    lambda problem: linear_rank(problem) or _layer_usable(problem),
    packs=int8.WEIGHTS,
    accepts=sums_fit,
)
int16_add = step_kernel("int16_add", int8.rescaled(int8.ADD, "ra", "rb"), _pair_usable)
int16_multiply = step_kernel("int16_multiply", int8.rescaled(int8.MULTIPLY, "m"), _pair_usable)
int16_requantize = step_kernel("int16_requantize", int8.rescaled(int8.REQUANTIZE, "ratio"), _usable)
int16_quantize = step_kernel("int16_quantize", int8.quantize_step, _usable)
int16_dequantize = step_kernel("int16_dequantize", int8.dequantize_step, _usable)
int16_avg_pool2d = step_kernel("int16_avg_pool2d", int8.average_step, _average_usable)
int16_mean = step_kernel(
    "int16_mean", int8.mean_step, lambda problem: int8.not_over_picture(problem) or _average_usable(problem)
)
int16_normalize = step_kernel(
    "int16_normalize",
    int8_rows.normalize_step,
    lambda problem: int8_rows.channels_last(problem) or _usable(problem),
)
int16_max_pool2d = step_kernel("int16_max_pool2d", int8.maximum_step, _usable)
