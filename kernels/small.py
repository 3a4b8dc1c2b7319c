"""Own kernels for eager calls of small tensors: no conversion of layouts, no packing, no Python on the way."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.kernel import EagerKernel
from megengine.kernels.native import flat_kernel
from megengine.kernels.problem import Problem, float32_only
from megengine.kernels.reference.order import too_much
from megengine.kernels.strided import MOVES, flat_step

_MOST_ELEMENTS = 1 << 14  # of the first input and the result: beyond, the work takes longer than NumPy's call
_MOST_PRODUCTS = 1 << 16  # of a convolution: beyond, oneDNN's conversions are worth it
_MOST_STRIDE = 8
_MOST_PARTS = 24  # joined or split; the limit of the native call


def _few(problem: Problem) -> str | None:
    size = max(problem.inputs[0].size, problem.outputs[0].size)
    return counted(size, "element") if size > _MOST_ELEMENTS else float32_only(problem)


def _small_conv(problem: Problem) -> str | None:
    out, weight, stride = problem.outputs[0], problem.inputs[1], problem.attrs.stride
    products = out.size * (weight.size // max(weight.shape[0], 1))
    if products > _MOST_PRODUCTS:
        return counted(products, "product")
    if problem.inputs[0].size > _MOST_PRODUCTS:
        return f"x of shape {problem.inputs[0].shape}"
    return f"stride {stride}" if stride[1] > _MOST_STRIDE else float32_only(problem)


def _conv_step(problem: Problem) -> Any:
    (n, c, h, w), (o, _, kh, kw) = problem.inputs[0].shape, problem.inputs[1].shape
    a = problem.attrs
    (top, _), (left, _) = a.padding
    lengths = [n, c, h, w, o, kh, kw, a.groups, *problem.outputs[0].shape[2:], *a.stride, *a.dilation, top, left]
    return _core.small_conv_step(lengths, len(problem.inputs) == 3)


def _relu_step(problem: Problem) -> Any:
    return _core.small_relu_step(problem.outputs[0].size, backward=problem.op == "relu_backward")


def _sum_step(problem: Problem, *, averaged: bool = False) -> Any:
    """Neighbouring axes that are all summed up, or all kept, are one run."""
    x, axes = problem.inputs[0], problem.attrs.axis
    summed = {a % x.ndim for a in (range(x.ndim) if axes is None else np.atleast_1d(axes).tolist())}
    runs: list[tuple[int, bool]] = []
    for axis, n in enumerate(x.shape):
        if n == 1:
            continue
        if runs and runs[-1][1] == (axis in summed):
            runs[-1] = runs[-1][0] * n, runs[-1][1]
        else:
            runs.append((n, axis in summed))
    runs = runs or [(1, True)]
    count = x.size // problem.outputs[0].size if averaged else 1
    return _core.sum_step([n for n, _ in runs], last_summed=runs[-1][1], divisor=float(count))


def _depth(problem: Problem) -> int:
    return problem.inputs[0].shape[-2 if problem.attrs.transpose_a else -1]


def _small_matmul(problem: Problem) -> str | None:
    *leading, rows, cols = problem.outputs[0].shape
    return too_much(tuple(leading), rows, _depth(problem), cols) or float32_only(problem)


def _matmul_step(problem: Problem) -> Any:
    (a, b), out, attrs = problem.inputs, problem.outputs[0], problem.attrs
    leading = out.shape[:-2]
    # where the factors of each matrix of the result begin
    places = [
        np.broadcast_to(np.arange(s.size, step=s.shape[-1] * s.shape[-2]).reshape(s.shape[:-2]), leading).ravel()
        for s in (a, b)
    ]
    return _core.small_matmul_step(
        rows=out.shape[-2],
        depth=_depth(problem),
        cols=out.shape[-1],
        transpose_a=attrs.transpose_a,
        transpose_b=attrs.transpose_b,
        places=list(zip(*(p.tolist() for p in places), strict=True)),
    )


def _few_moved(problem: Problem) -> str | None:
    size = max(s.size for s in (*problem.inputs, *problem.outputs))
    if size > _MOST_ELEMENTS:
        return counted(size, "element")
    parts = max(len(problem.outputs), len(problem.inputs))
    return counted(parts, "part") if parts > _MOST_PARTS else MOVES[problem.op][0](problem)


own_small_conv2d = flat_kernel("own_small_conv2d", _conv_step, _small_conv)
own_small_matmul = flat_kernel("own_small_matmul", _matmul_step, _small_matmul)
own_small_sum = flat_kernel("own_small_sum", _sum_step, _few)
own_small_mean = flat_kernel("own_small_mean", partial(_sum_step, averaged=True), _few)
own_small_relu = flat_kernel("own_small_relu", _relu_step, _few)
own_small_relu_backward = flat_kernel("own_small_relu_backward", _relu_step, _few)
# none for maximum and minimum: the sign of a zero may differ from NumPy's
own_small_add = flat_kernel("own_small_add", flat_step, _few)
own_small_sub = flat_kernel("own_small_sub", flat_step, _few)
own_small_mul = flat_kernel("own_small_mul", flat_step, _few)
own_small_div = flat_kernel("own_small_div", flat_step, _few)
own_small_transpose = flat_kernel("own_small_transpose", flat_step, _few_moved)
own_small_slice = flat_kernel("own_small_slice", flat_step, _few_moved)
own_small_broadcast_to = flat_kernel("own_small_broadcast_to", flat_step, _few_moved)
own_small_copy = flat_kernel("own_small_copy", flat_step, _few_moved)
own_small_concat = flat_kernel("own_small_concat", flat_step, _few_moved)
own_small_split = flat_kernel(
    "own_small_split", flat_step, lambda problem: "1 part" if len(problem.outputs) == 1 else _few_moved(problem)
)
own_small_pad = flat_kernel("own_small_pad", flat_step, _few_moved)
own_small_set_index = flat_kernel("own_small_set_index", flat_step, _few_moved)
view_reshape = EagerKernel(
    "view_reshape", lambda problem, x: np.ascontiguousarray(x).reshape(problem.outputs[0].shape), reshapes=True
)

own_small_function = flat_kernel(
    "own_small_function",
    lambda problem: _core.function_step(problem.inputs[0].size, problem.op, problem.attrs.get("slope", 0.0), 1),
    _few,
)
