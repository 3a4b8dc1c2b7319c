"""Ops on values whose axes are turned: [N,C,H,W] as arrays [N,H,W,C]."""

from __future__ import annotations

from typing import Any

from megengine.kernels.problem import Problem

AXES = (0, 2, 3, 1)  # axes in the order in which they lie in memory
_MOVED = {1: 3, 2: 1, 3: 2}  # of an axis in rows: where it is channels-last
_MEANS = ("mean", "qmean")
_BY_AXIS = {"pad": ("widths",), "slice": ("starts", "stops", "steps"), "fused_repeat": ("counts",)}  # one for each axis


def turned_shape(shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape of the channels-last array of a value; what belongs to each axis, in the order of its axes."""
    return tuple(shape[axis] for axis in AXES)


def turned_attrs(problem: Problem, pointwise: frozenset[str]) -> dict[str, Any] | None:
    """The attributes with which an op computes the same on channels-last values; None where there are none.

    `pointwise` are the ops of single numbers.
    """
    attrs = dict(problem.attrs)
    if problem.op in pointwise:
        dtype = attrs.get("dtype")
        return None if getattr(dtype, "axis", None) is not None else attrs
    if problem.op in ("concat", "split") and attrs.get("axis", 0) % 4 and all(s.ndim == 4 for s in problem.inputs):
        return {**attrs, "axis": _MOVED[attrs["axis"] % 4]}
    if problem.op in _MEANS and problem.inputs[0].ndim == 4 and _of_space(attrs.get("axis")):
        return {**attrs, "axis": (1, 2)}
    if problem.op == "transpose" and problem.inputs[0].ndim == 4:
        return {"perm": tuple(AXES.index(attrs["perm"][axis]) for axis in AXES)}
    if problem.op in _BY_AXIS and problem.inputs[0].ndim == 4:
        return {k: turned_shape(v) if k in _BY_AXIS[problem.op] else v for k, v in attrs.items()}
    return None


def _of_space(axis: Any) -> bool:
    """Whether a mean is that of each channel."""
    return isinstance(axis, tuple) and {a % 4 for a in axis} == {2, 3}
