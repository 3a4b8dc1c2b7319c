"""Own float32 convolutions of groups of few channels, as those of ResNeXt: vectors hold channels of several groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.native import long_steps, step_kernel
from megengine.kernels.problem import Problem, float32_only
from megengine.kernels.products import activation_of

_FEW = 8  # channels of a group up to which it was measured to be faster than oneDNN's kernel
_MOST_REACH = 64  # rows of the input that one row of the result spans


def _usable(problem: Problem) -> str | None:
    (taken, *kernel), outputs, a = problem.inputs[1].shape[1:], problem.inputs[1].shape[0], problem.attrs
    if taken > _FEW or a.groups == 1:
        return f"{counted(a.groups, 'group')} of {counted(taken, 'channel')}; expected several of at most {_FEW}"
    if taken == 1 and outputs == a.groups:
        return "each channel by itself"
    if (kernel[0] - 1) * a.dilation[0] >= _MOST_REACH:
        return f"a kernel of {kernel[0]} rows, {a.dilation[0]} apart; expected at most {_MOST_REACH} in all"
    if any(s.size == 0 for s in (*problem.inputs, *problem.outputs)):
        return "empty tensors"
    return float32_only(problem) or long_steps(problem)


def _step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    (n, c, *size), (outputs, *out), a = problem.inputs[0].shape, problem.outputs[0].shape[1:], problem.attrs
    clamp, after = activation_of(problem)
    return _core.grouped_step(
        sizes=(n, c, outputs, a.groups),
        in_size=size,
        out_size=out,
        stride=a.stride,
        dilation=a.dilation,
        before=[start for start, _ in a.padding],
        weights=np.ascontiguousarray(constants[1]),
        bias=np.ascontiguousarray(constants[2]) if 2 in constants else np.zeros(outputs, np.float32),
        residual=len(problem.inputs) == 4,
        clamp=clamp,
        after=after,
        threads=threads,
    )


own_grouped_conv2d = step_kernel("own_grouped_conv2d", _step, _usable, packs=(1, 2))
own_fused_grouped_conv2d = step_kernel("own_fused_grouped_conv2d", _step, _usable, packs=(1, 2), inplace_input=3)
