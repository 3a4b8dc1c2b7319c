"""Own kernels for eager calls of small tensors: no conversion of layouts, no packing, no Python on the way."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.kernels import _core
from megengine.kernels.native import flat
from megengine.kernels.registry import Kernel, Problem, family
from megengine.kernels.strided import BINARY, flat_broadcast_step

_F32 = np.dtype(np.float32)
_MOST_ELEMENTS = 1 << 14  # of a result: beyond, the work takes longer than NumPy's call
_MOST_PRODUCTS = 1 << 16  # beyond, oneDNN's conversions are worth it
_MOST_STRIDE = 8


def _float32(problem: Problem) -> str | None:
    specs = (*problem.inputs, *problem.outputs)
    wrong = sorted({str(s.dtype) for s in specs if s.dtype != _F32})
    if wrong:
        return f"float32 only, got {', '.join(wrong)}"
    return "no elements" if any(s.size == 0 for s in specs) else None


def _few(problem: Problem) -> str | None:
    size = problem.outputs[0].size
    return f"{size} elements" if size > _MOST_ELEMENTS else _float32(problem)


def _small_conv(problem: Problem) -> str | None:
    out, weight, stride = problem.outputs[0], problem.inputs[1], problem.attrs.stride
    products = out.size * (weight.size // max(weight.shape[0], 1))
    if products > _MOST_PRODUCTS:
        return f"{products} products"
    if problem.inputs[0].size > _MOST_PRODUCTS:
        return f"x of shape {problem.inputs[0].shape}"
    return f"stride {stride}" if stride[1] > _MOST_STRIDE else _float32(problem)


def _conv_step(problem: Problem) -> Any:
    (n, c, h, w), (o, _, kh, kw) = problem.inputs[0].shape, problem.inputs[1].shape
    a = problem.attrs
    (top, _), (left, _) = a.padding
    lengths = [n, c, h, w, o, kh, kw, a.groups, *problem.outputs[0].shape[2:], *a.stride, *a.dilation, top, left]
    return _core.small_conv_step(lengths, len(problem.inputs) == 3)


family("conv2d").add(
    Kernel("own_small_conv2d", usable=_small_conv, run=flat(_conv_step), make_flat=_conv_step, exact=False),
    before="onednn_conv2d",
)
for _op in BINARY[:4]:  # of the others the sign of a zero may differ from NumPy's
    family(_op).add(
        Kernel(f"own_small_{_op}", usable=_few, run=flat(flat_broadcast_step), make_flat=flat_broadcast_step)
    )
