"""Own products of float32 matrices: weights in panels, sums in registers. Bits depend on the instruction set alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.text import counted
from megengine.kernels import _core
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import linear_rank, step_kernel
from megengine.kernels.problem import Problem, float32_only

_CLAMPS = _core.clamp_names()  # activations of the kernels' own
_FEW_PIXELS = 400  # that wait for weights from memory, which these kernels fetch early; with more, oneDNN is as fast


def activation_of(problem: Problem) -> tuple[str, Any]:
    """The clamp that a kernel applies to its sums, and the function that its step applies behind it, or None."""
    name = problem.attrs.get("activation", "none")
    return (name, None) if name in _CLAMPS else ("none", _core.float_function(name, 0.0))


def fused_layer(problem: Problem, constants: dict[int, np.ndarray]) -> dict[str, Any]:
    """What the step of a fused layer with constant weights and bias takes, but for its geometry."""
    outputs = constants[1].shape[0]
    clamp, after = activation_of(problem)
    return {
        "weights": np.ascontiguousarray(constants[1]),
        "bias": np.ascontiguousarray(constants[2]) if 2 in constants else np.zeros(outputs, np.float32),
        "residual": len(problem.inputs) == 4,
        "clamp": clamp,
        "after": after,
    }


def _linear_usable(problem: Problem) -> str | None:
    return linear_rank(problem) or float32_only(problem)


def _linear_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """A linear layer, or a convolution of 1x1: one over the pixels, which lie channels-last."""
    columns, depth = constants[1].shape[:2]
    weights, (clamp, after) = np.ascontiguousarray(constants[1]).reshape(columns, depth), activation_of(problem)
    bias = np.ascontiguousarray(constants[2]) if 2 in constants else np.zeros(columns, np.float32)
    rows, residual = problem.inputs[0].size // depth, len(problem.inputs) == 4
    return _core.linear_step(rows, weights, bias, residual, clamp, after, threads)


def _pointwise_usable(problem: Problem) -> str | None:
    (n, _, *size), kernel, a = problem.inputs[0].shape, problem.inputs[1].shape[2:], problem.attrs
    geometry = (kernel, tuple(a.stride), tuple(map(tuple, a.padding)), a.groups)
    if geometry != ((1, 1), (1, 1), ((0, 0), (0, 0)), 1):
        return "not a convolution of single pixels"
    if n * math.prod(size) > _FEW_PIXELS:
        return f"{counted(n * math.prod(size), 'pixel')}; expected at most {_FEW_PIXELS}"
    return float32_only(problem)


def _rows_usable(problem: Problem) -> str | None:
    x, w = problem.inputs
    if w.ndim != 2 or x.ndim == 1 or problem.attrs.transpose_a:
        turned = ", transposed" * problem.attrs.transpose_a
        return f"operands of shapes {x.shape}{turned} and {w.shape}; only rows with a matrix"
    return _linear_usable(problem)


def _constant_matrix(problem: Problem, constants: dict[int, np.ndarray]) -> str | None:
    return None if 1 in constants else "the second operand is computed"


def _rows_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    """A product with a constant matrix: a linear layer over the rows of all stacks."""
    w = constants[1]
    weights = np.ascontiguousarray(w if problem.attrs.transpose_b else w.T)
    columns, depth = weights.shape
    bias = np.zeros(columns, np.float32)
    return _core.linear_step(problem.inputs[0].size // depth, weights, bias, False, "none", None, threads)


own_fused_linear = step_kernel("own_fused_linear", _linear_step, _linear_usable, packs=(1, 2), inplace_input=3)
own_fused_pointwise = step_kernel("own_fused_pointwise", _linear_step, _pointwise_usable, packs=(1, 2), inplace_input=3)
own_matmul_rows = StepKernel(
    "own_matmul_rows", _rows_step, _rows_usable, packs=(1,), accepts=_constant_matrix, free=True
)  # eager calls: NumPy's product, which packs nothing
