"""Own kernels of layers with 4-bit weights, which lie two to a byte in plans and are taken apart as a layer runs.

Values have 8 or 16 bits. The numbers are those of the kernels of 8-bit weights.
"""

from __future__ import annotations

import functools

from megengine.core.dtype import QuantizedDType
from megengine.kernels import int8
from megengine.kernels.int16 import other_values, sums_fit
from megengine.kernels.native import linear_rank, long_steps, step_kernel
from megengine.kernels.problem import Problem


def _usable(problem: Problem) -> str | None:
    dtype = problem.inputs[1].dtype
    if not isinstance(dtype, QuantizedDType) or dtype.name != "qint4":
        return f"weights are {dtype}, not of 4 bits"
    return other_values(problem) or long_steps(problem) or int8.usable_size(problem)


def _conv_usable(problem: Problem) -> str | None:
    few = problem.inputs[1].shape[1] == 1 and int8.not_depthwise(problem) is None
    return "depthwise weights are few, and have kernels of their own" if few else _usable(problem)


int4_conv = step_kernel(
    "int4_conv",
    functools.partial(int8.dense_step, halved=True),
    _conv_usable,
    packs=int8.WEIGHTS,
    accepts=sums_fit,
)
int4_linear = step_kernel(
    "int4_linear",
    functools.partial(int8.linear_step, halved=True),
    lambda problem: linear_rank(problem) or _usable(problem),
    packs=int8.WEIGHTS,
    accepts=sums_fit,
)
