"""Own products of float32 matrices: weights in panels, sums in registers. Bits depend on the instruction set alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.kernels import _core
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import linear_rank, step_kernel
from megengine.kernels.problem import Problem, float32_only

_CLAMPS = _core.clamp_names()  # activations of the kernels' own


def activation_of(problem: Problem) -> tuple[str, Any]:
    """The clamp that a kernel applies to its sums, and the function that its step applies behind it, or None."""
    name = problem.attrs.get("activation", "none")
    return (name, None) if name in _CLAMPS else ("none", _core.float_function(name, 0.0))


def _linear_usable(problem: Problem) -> str | None:
    return linear_rank(problem) or float32_only(problem)


def _linear_step(problem: Problem, constants: dict[int, np.ndarray], threads: int) -> Any:
    weights, (clamp, after) = np.ascontiguousarray(constants[1]), activation_of(problem)
    rows, bias = problem.inputs[0].size // weights.shape[1], np.ascontiguousarray(constants[2])
    return _core.linear_step(rows, weights, bias, len(problem.inputs) == 4, clamp, after, threads)


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
own_matmul_rows = StepKernel(
    "own_matmul_rows", _rows_step, _rows_usable, packs=(1,), accepts=_constant_matrix, free=True
)  # eager calls: NumPy's product, which packs nothing
