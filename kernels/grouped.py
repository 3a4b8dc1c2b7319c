"""Own convolutions of groups of few channels.

Over two axes, as those of ResNeXt, vectors hold channels of several groups: float32. Over three axes, each channel by
itself among them, vectors hold neighbours in rows: float32 and bfloat16, whose sums are float32. So they do over two
axes where values lie in rows, each channel by itself. Transposed, channels by themselves lie side by side in vectors.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.text import counted
from megengine.kernels import _core, isa
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import long_steps, step_kernel
from megengine.kernels.onednn import WIDEST_HALF, joins_groups
from megengine.kernels.problem import Problem, float32_only, no_elements
from megengine.kernels.products import activation_of, fused_layer

_FEW = 8  # channels of a group up to which it was measured to be faster than oneDNN's kernel
_FEW_OF_VOLUMES = 4  # the same over three axes
_GROUPS = (4, 8)  # channels of a group of bfloat16 up to which it was measured to be faster
_LANES = 16  # channels of the widest vectors
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
    return _core.grouped_step(
        sizes=(n, c, outputs, a.groups),
        in_size=size,
        out_size=out,
        stride=a.stride,
        dilation=a.dilation,
        before=[start for start, _ in a.padding],
        threads=threads,
        **fused_layer(problem, constants),
    )


def _volume_usable(problem: Problem) -> str | None:
    taken, a = problem.inputs[1].shape[1], problem.attrs
    if taken > _FEW_OF_VOLUMES or a.groups == 1:
        groups, channels = counted(a.groups, "group"), counted(taken, "channel")
        return f"{groups} of {channels}; expected several of at most {_FEW_OF_VOLUMES}"
    dtypes = {s.dtype for s in (*problem.inputs, *problem.outputs)}
    if dtypes != {bfloat16}:
        return float32_only(problem) or long_steps(problem)
    return no_elements(problem) or long_steps(problem)


def _plane_usable(problem: Problem) -> str | None:
    if not _alone(problem) or len(problem.inputs) == 4:
        return "in rows only each channel by itself, without a residual"
    columns = problem.inputs[1].shape[-1]
    if problem.inputs[0].dtype == bfloat16 and columns > WIDEST_HALF:  # casts to float32 take less than other layouts
        return f"a kernel of bfloat16 with {columns} columns; expected at most {WIDEST_HALF}"
    return _volume_usable(problem)


def _alone(problem: Problem) -> bool:
    """Each channel by itself."""
    return problem.inputs[0].shape[1] == problem.outputs[0].shape[1] == problem.attrs.groups


def _floats(constants: dict[int, np.ndarray], outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias in float32."""
    bias = constants[2] if 2 in constants else np.zeros(outputs)
    return np.ascontiguousarray(constants[1], np.float32), np.ascontiguousarray(bias, np.float32)


def _volume_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """Over three axes; of two, the first one has the length 1."""
    (n, c, *size), (outputs, *out), a = problem.inputs[0].shape, problem.outputs[0].shape[1:], problem.attrs
    clamp, after = activation_of(problem)
    weights, bias = _floats(constants, outputs)
    one = (1,) * (3 - len(size))
    return _core.volume_step(
        sizes=(n, c, outputs, a.groups),
        in_size=(*one, *size),
        out_size=(*one, *out),
        stride=(*one, *a.stride),
        dilation=(*one, *a.dilation),
        before=[start for start, _ in ((0, 0),) * len(one) + tuple(a.padding)],
        weights=weights.reshape(*weights.shape[:2], *one, *weights.shape[2:]),
        bias=bias,
        clamp=clamp,
        after=after,
        half=problem.inputs[0].dtype == bfloat16,
        threads=threads,
    )


def _transposed_usable(problem: Problem) -> str | None:
    if not _alone(problem):
        return "only each channel by itself"
    dtypes = {s.dtype for s in (*problem.inputs, *problem.outputs)}
    return (no_elements(problem) if dtypes == {bfloat16} else float32_only(problem)) or long_steps(problem)


def _transposed_step(problem: Problem, constants: dict[int, np.ndarray], threads: int, *, in_rows: bool = False) -> Any:
    (n, c, *size), out, a = problem.inputs[0].shape, problem.outputs[0].shape[2:], problem.attrs
    weights, bias = _floats(constants, c)
    return _core.transposed_step(
        sizes=(n, c),
        in_size=size,
        out_size=out,
        stride=a.stride,
        dilation=a.dilation,
        before=[start for start, _ in a.padding],
        weights=weights,
        bias=bias,
        half=problem.inputs[0].dtype == bfloat16,
        in_rows=in_rows,
        threads=threads,
    )


def _channels_usable(problem: Problem) -> str | None:
    channels, taken = problem.outputs[0].shape[1], problem.inputs[1].shape[1]
    grouped = taken in _GROUPS and channels == problem.inputs[0].shape[1] == taken * problem.attrs.groups
    if not (_alone(problem) or grouped) or len(problem.inputs) == 4:
        return "only each channel by itself or groups of 4 or 8 in and out, without a residual"
    if joins_groups(problem):
        return "oneDNN is faster with several groups in one"
    if wrong := sorted({str(s.dtype) for s in (*problem.inputs, *problem.outputs) if s.dtype != bfloat16}):
        return f"bfloat16 only, got {', '.join(wrong)}"
    a, columns = problem.attrs, problem.inputs[1].shape[-1]
    if columns not in (3, 5) or a.stride[1] > 2 or tuple(a.dilation) != (1, 1):
        return f"a kernel as wide as {columns}; expected 3 or 5, steps of 1 or 2, and no dilation"
    if problem.inputs[0].shape[1] < _LANES:
        return f"{counted(problem.inputs[0].shape[1], 'channel')}; expected at least {_LANES}"
    if not isa.has("bf16"):  # oneDNN's kernel rounds faster without that instruction
        return f"needs AVX512-BF16, active is {isa.active()}"
    return no_elements(problem) or long_steps(problem)


def _channels_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    (n, c, *size), out, a = problem.inputs[0].shape, problem.outputs[0].shape[2:], problem.attrs
    weights, bias = _floats(constants, c)
    clamp, after = activation_of(problem)
    return _core.channel_step(
        sizes=(n, c),
        in_size=size,
        out_size=out,
        stride=a.stride,
        before=[start for start, _ in a.padding],
        weights=weights,
        bias=bias,
        clamp=clamp,
        after=after,
        threads=threads,
    )


own_grouped_conv2d = step_kernel("own_grouped_conv2d", _step, _usable, packs=(1, 2))
own_fused_grouped_conv2d = step_kernel("own_fused_grouped_conv2d", _step, _usable, packs=(1, 2), inplace_input=3)
own_grouped_conv3d = step_kernel("own_grouped_conv3d", _volume_step, _volume_usable, packs=(1, 2))
own_fused_grouped_conv3d = step_kernel("own_fused_grouped_conv3d", _volume_step, _volume_usable, packs=(1, 2))
own_planes_conv2d = StepKernel("own_planes_conv2d", _volume_step, _plane_usable, packs=(1, 2), in_rows=True)
own_channels_conv2d = StepKernel("own_channels_conv2d", _channels_step, _channels_usable, packs=(1, 2), free=True)
own_transposed_channels = step_kernel("own_transposed_channels", _transposed_step, _transposed_usable, packs=(1, 2))
own_transposed_planes = StepKernel(
    "own_transposed_planes",
    functools.partial(_transposed_step, in_rows=True),
    _transposed_usable,
    packs=(1, 2),
    in_rows=True,
)
