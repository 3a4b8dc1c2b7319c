"""Where the numbers of values with four axes lie: channels-last, as kernels of layers take them, or in rows, as NumPy.

A step takes every value with four axes channels-last. The same op on operands with an axis of length 1 in front
(`Op.lift`) has five, which lie in rows: so an op can run on either. Ops that only have a kernel for one of them fix the
layout of what they read and write; the rest of the values follow those around them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.spec import TensorSpec
from megengine.kernels.kernel import StepKernel
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

_ROWS, _CHANNELS_LAST = (0, 1, 2, 3), (0, 2, 3, 1)  # axes in the order in which they lie in memory


def one_layout(spec: TensorSpec) -> bool:
    """True if both layouts are the same bytes."""
    return spec.ndim != 4 or spec.shape[1] == 1 or spec.shape[2] * spec.shape[3] == 1


def problem_of(expr: Apply, *, rows: bool) -> Problem | None:
    """What a kernel is asked for an op on values in this layout; None if rows cannot be had."""
    inputs, outputs = [n.spec for n in expr.inputs], [n.spec for n in expr.outputs]
    if not rows or all(s.ndim != 4 for s in (*inputs, *outputs)):
        return Problem(expr.op, inputs, outputs, expr.attrs)
    lift = expr.record.lift
    if lift is None or any(getattr(s.dtype, "axis", None) is not None for s in (*inputs, *outputs)):
        return None
    most, attrs = max(s.ndim for s in inputs), expr.attrs
    for _ in range(2):  # a second time where the first one leads to four axes
        inputs = [_lifted(s) if s.ndim >= most else s for s in inputs]
        outputs, attrs = [_lifted(s) for s in outputs], lift(attrs)
        if all(map(one_layout, (*inputs, *outputs))):
            return Problem(expr.op, inputs, outputs, attrs)
    return None


def _lifted(spec: TensorSpec) -> TensorSpec:
    return TensorSpec((1, *spec.shape), spec.dtype, spec.device)


def constants_of(expr: Apply, problem: Problem) -> dict[int, np.ndarray]:
    """Constant operands, in the shapes of the problem."""
    return {
        i: n.expr.value.numpy().reshape(spec.shape)
        for i, (n, spec) in enumerate(zip(expr.inputs, problem.inputs, strict=True))
        if isinstance(n.expr, Constant)
    }


def choices(expr: Apply, *, rows: bool, exact: bool) -> tuple[Problem, dict[int, np.ndarray], list[StepKernel]] | None:
    """What kernels are asked on values in this layout, the constants for them, and the kernels; None without any."""
    flat = all(one_layout(n.spec) for n in (*expr.inputs, *expr.outputs))
    for lifted in (rows, False):
        problem = problem_of(expr, rows=lifted)
        if problem is not None:
            constants = constants_of(expr, problem)
            usable = [k for k in family(problem.op).for_plan(problem, constants) if not (exact and k.free)]
            if lifted == rows:
                usable = [k for k in usable if rows or flat or not k.in_rows]
            else:
                usable = [k for k in usable if k.in_rows]
            if usable:
                return problem, constants, usable
    return None


def turned(expr: Apply, *, source_rows: bool, target_rows: bool) -> Problem | None:
    """A transposition of memory that is one of values between layouts; None if nothing moves."""
    source, target = (_ROWS if rows else _CHANNELS_LAST for rows in (source_rows, target_rows))
    perm = [source.index(expr.attrs["perm"][axis]) for axis in target]
    shape = [expr.inputs[0].shape[axis] for axis in source]
    moving = [p for p in perm if shape[p] != 1]
    if moving == sorted(moving):
        return None
    dtype = expr.output.dtype
    before, after = TensorSpec((1, *shape), dtype), TensorSpec((1, *(shape[p] for p in perm)), dtype)
    return Problem(expr.op, [before], [after], {"perm": (0, *(p + 1 for p in perm))})


class Layouts:
    """The layout of every value of a graph, and of every op.

    Inputs and outputs lie in rows; inside another plan (`inside`: which inputs lie in rows) outputs lie as they come.
    """

    def __init__(self, graph: InternalGraph, *, exact: bool, inside: Sequence[bool] | None = None) -> None:
        self._exact = exact
        self._group: dict[int, int] = {}  # of values that lie alike
        self._fixed: dict[int, bool] = {}  # ops that fix a layout -> is it rows
        wanted: dict[bool, dict[int, TensorNode]] = {True: {}, False: {}}
        for expr in graph.exprs():
            if not isinstance(expr, Apply) or expr.op == "transpose":
                continue
            values = _with_four_axes((*expr.inputs, *expr.outputs))
            rows = self._fix(expr)
            if rows is None:
                for value in values[1:]:
                    self._group[self._root(id(values[0]))] = self._root(id(value))
            else:
                self._fixed[id(expr)] = rows
                wanted[rows].update((id(v), v) for v in values)
        for value, rows in zip(graph.inputs, inside or [True] * len(graph.inputs), strict=True):
            wanted[rows].update((id(v), v) for v in _with_four_axes([value]))
        if inside is None:
            wanted[True].update((id(v), v) for v in _with_four_axes(graph.outputs))
        cost: dict[int, int] = defaultdict(int)  # of a group: bytes that move if it lies in rows, less the others
        for rows, sign in ((True, -1), (False, 1)):
            for key, value in wanted[rows].items():
                cost[self._root(key)] += sign * value.spec.size * storage_of(value.dtype).itemsize
        self._rows = {group for group, bytes_ in cost.items() if bytes_ < 0}

    def _fix(self, expr: Apply) -> bool | None:
        """Whether an op takes its values in rows; None if it may have either."""
        if expr.record.keeps_order:
            return True
        if not self._has_kernel(expr, rows=False):
            return True
        return None if self._has_kernel(expr, rows=True) else False

    def _has_kernel(self, expr: Apply, *, rows: bool) -> bool:
        return choices(expr, rows=rows, exact=self._exact) is not None

    def _root(self, key: int) -> int:
        while key in self._group and self._group[key] != key:
            key = self._group[key]
        return key

    def value_in_rows(self, node: TensorNode) -> bool:
        """True if a value lies in rows where nothing fixes its layout."""
        return self._root(id(node)) in self._rows

    def in_rows(self, expr: Apply) -> bool:
        """True if an op takes and gives values in rows."""
        if id(expr) in self._fixed:
            return self._fixed[id(expr)]
        values = _with_four_axes((*expr.inputs, *expr.outputs))
        return bool(values) and self.value_in_rows(values[0])


def _with_four_axes(nodes: Iterable[Any]) -> list[TensorNode]:
    return [n for n in nodes if n.spec.ndim == 4 and not isinstance(n.expr, Constant)]
