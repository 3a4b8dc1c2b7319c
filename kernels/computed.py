"""Float convolutions whose weights are computed (StyleGAN, mixtures of kernels): every run packs the weights.

Eager calls pack the weights that they are given, with the kernels of constant ones. Where theirs is oneDNN's, plans
give the same numbers; where it is one of this package, which adds in another order, the last bits may differ.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from megengine.kernels import grouped
from megengine.kernels.kernel import StepKernel
from megengine.kernels.onednn import conv_usable, window_step, windows_usable
from megengine.kernels.problem import Problem

_OWN = {
    "conv2d": grouped.own_grouped_conv2d,
    "conv3d": grouped.own_grouped_conv3d,
    "conv_transpose2d": grouped.own_transposed_channels,
}


def _usable(problem: Problem, *, own: bool) -> str | None:
    """`own`: where eager calls have a kernel of this package."""
    if missing := (conv_usable if problem.op == "conv2d" else windows_usable)(problem):
        return missing
    kernel = _OWN.get(problem.op)
    taken = kernel is not None and kernel.usable(problem) is None
    return None if taken == own else f"eager calls have {'a' if taken else 'no'} kernel of this package"


def _computed(problem: Problem, constants: dict[int, np.ndarray]) -> str | None:
    return "weights and bias are constants" if {*range(1, len(problem.inputs))} <= constants.keys() else None


def _kernel(name: str, *, own: bool) -> StepKernel:
    step, usable = partial(window_step, computed=True), partial(_usable, own=own)
    return StepKernel(name, step, usable, accepts=_computed, free=own)


onednn_computed_windows = _kernel("onednn_computed_windows", own=False)
onednn_computed_groups = _kernel("onednn_computed_groups", own=True)
OF_COMPUTED_WEIGHTS = (onednn_computed_windows, onednn_computed_groups)
