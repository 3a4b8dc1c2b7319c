"""Own convolutions of bfloat16 in tiles of AMX, of few input channels, as first layers have.

Sums are float32. The instruction takes products in pairs: a window whose row has an odd number of them also reads the
number behind it, times 0, so that one which is not finite there makes the result NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.text import counted
from megengine.kernels import _core, isa, memory
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import long_steps
from megengine.kernels.problem import Problem, no_elements
from megengine.kernels.products import activation_of

_FEW = 4  # input channels up to which it was measured to be faster than oneDNN's kernel
_LONGEST = 1 << 14  # numbers of a line with its padding that the copy of a window's rows is made for


def _usable(problem: Problem) -> str | None:
    x, out, a = problem.inputs[0], problem.outputs[0], problem.attrs
    if x.shape[1] > _FEW or a.groups > 1 or len(problem.inputs) == 4:
        return f"{counted(x.shape[1], 'channel')}; expected at most {_FEW}, in one group, without a residual"
    if wrong := sorted({str(s.dtype) for s in (*problem.inputs, out) if s.dtype != bfloat16}):
        return f"bfloat16 only, got {', '.join(wrong)}"
    if a.dilation[-1] != 1 or (sum(a.padding[-1]) + x.shape[-1]) * x.shape[1] > _LONGEST:
        return f"columns {a.dilation[-1]} apart, lines of {x.shape[-1]}; expected neighbours, in lines that are shorter"
    if not isa.has("amx"):
        return f"needs AMX, active is {isa.active()}"
    return no_elements(problem) or long_steps(problem)


def _step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """Over three axes; of two, which lie channels-last, the first one has the length 1."""
    (n, c, *size), (outputs, *out), a = problem.inputs[0].shape, problem.outputs[0].shape[1:], problem.attrs
    clamp, after = activation_of(problem)
    one = (1,) * (3 - len(size))
    weights = np.ascontiguousarray(constants[1])
    return _core.tiled_conv_step(
        sizes=(n, c, outputs),
        in_size=(*one, *size),
        out_size=(*one, *out),
        stride=(*one, *a.stride),
        dilation=(*one, *a.dilation),
        before=[start for start, _ in ((0, 0),) * len(one) + tuple(a.padding)],
        weights=memory.bits(weights.reshape(*weights.shape[:2], *one, *weights.shape[2:])),
        bias=np.ascontiguousarray(constants[2] if 2 in constants else np.zeros(outputs), np.float32),
        clamp=clamp,
        after=after,
        in_rows=len(size) == 3,
        threads=threads,
    )


own_tiled_conv2d = StepKernel("own_tiled_conv2d", _step, _usable, packs=(1, 2), free=True)
own_tiled_conv3d = StepKernel("own_tiled_conv3d", _step, _usable, packs=(1, 2), free=True)
