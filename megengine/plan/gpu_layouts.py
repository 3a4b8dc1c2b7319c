"""Where plans for GPUs compute ops on channels-last values: by kernels that take them, and on shapes with turned axes.

A value with four axes lies in rows, as the op says it ([N,C,H,W]), or channels-last, as an array [N,H,W,C]. Ops of
single numbers compute on either; so do ops with a kernel of `cuda_last`. All other ops take rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.spec import TensorSpec
from megengine.kernels.cuda.lists import cuda_last
from megengine.kernels.cuda.turning import AXES, turned_attrs, turned_shape
from megengine.kernels.kernel import Kernel
from megengine.kernels.problem import Problem
from megengine.plan.layouts import one_layout
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode

_TURNED = (2, 4, 1)  # sizes of elements that are turned from one layout to the other


def turnable(spec: TensorSpec) -> bool:
    """Whether a value may lie channels-last."""
    return spec.ndim == 4 and spec.size > 0 and storage_of(spec.dtype).itemsize in _TURNED and _plain(spec)


def _plain(spec: TensorSpec) -> bool:
    return getattr(spec.dtype, "axis", None) is None


def last_kernel(problem: Problem, moving: Iterable[int]) -> Kernel | None:
    """The kernel that computes an op on channels-last values; None if it needs rows."""
    if not all(turnable(s) for s in problem.outputs):
        return None
    if not all(turnable(problem.inputs[i]) for i in moving):
        return None
    return next((k for k in cuda_last().get(problem.op, ()) if k.usable(problem) is None), None)


# ---------------------------------------------------------------- ops of single numbers


@dataclass(frozen=True, slots=True)
class Turned:
    """An op on values whose axes are turned: the problem, and how constants are turned to its operands."""

    problem: Problem
    constants: dict[int, Callable[[np.ndarray], np.ndarray]]


def _wide(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*(1,) * (4 - len(shape)), *shape)


def _turn_constant(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array.reshape(_wide(array.shape)).transpose(AXES))


def turned_op(expr: Apply, problem: Problem, pointwise: frozenset[str]) -> Turned | None:
    """An op of `pointwise` on channels-last values; None if it is none of them, or its operands do not allow it.

    Operands with four axes lie channels-last. Others are constants, which are turned, or single numbers. A mean of each
    channel may have two axes, which lie in rows.
    """
    attrs = turned_attrs(problem, pointwise)
    if attrs is None or not all(turnable(s) or s.ndim == 2 for s in problem.outputs):
        return None
    inputs, constants = [], {}
    for i, (node, spec) in enumerate(zip(expr.inputs, problem.inputs, strict=True)):
        if not _plain(spec):
            return None
        if spec.size == 1 or (problem.op == "qtable" and i > 0):
            inputs.append(spec)
        elif isinstance(node.expr, Constant):
            inputs.append(TensorSpec(turned_shape(_wide(spec.shape)), spec.dtype, spec.device))
            constants[i] = _turn_constant
        elif turnable(spec):
            inputs.append(TensorSpec(turned_shape(spec.shape), spec.dtype, spec.device))
        else:
            return None
    outputs = [TensorSpec(turned_shape(s.shape), s.dtype, s.device) if s.ndim == 4 else s for s in problem.outputs]
    return Turned(Problem(problem.op, inputs, outputs, attrs), constants)


def prefers_last(nodes: Iterable[TensorNode], lies: Callable[[TensorNode], bool]) -> bool:
    """Whether most of the bytes that an op reads lie channels-last already."""
    cost = 0
    for node in nodes:
        if not isinstance(node.expr, Constant) and node.spec.ndim == 4 and not one_layout(node.spec):
            cost += node.spec.size * storage_of(node.dtype).itemsize * (1 if lies(node) else -1)
    return cost > 0
