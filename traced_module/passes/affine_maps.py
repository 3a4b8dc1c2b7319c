"""Affine maps `y = scale * x + shift` by numbers or by channels: how they are written, and what several do together.

The numbers must be tame: a chain whose intermediate values overflow, or that rounds on purpose (`x + 2**23 - 2**23`),
is left as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from megengine.core.dtype import is_float, storage_of
from megengine.traced_module.ir.expr import Apply, Callee, Constant, Expr
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.patterns import any_, call, const, match

NORM = "batch_norm"
X, BY = any_(), const()
# arithmetic on x and a constant -> (scale, shift) from the constant
_MAPS: dict[Any, Callable[..., Any]] = {
    call("add", X, BY): lambda c: (1, c),
    call("sub", X, BY): lambda c: (1, -c),
    call("sub", BY, X): lambda c: (-1, c),
    call("mul", X, BY): lambda c: (c, 0),
    call("div", X, BY): lambda c: (1 / c, 0),
    call("neg", X): lambda: (-1, 0),
}
# the same by kind: the op, with an "r" in front where x is its second operand
_FORMS: dict[str, Any] = {}
_EFFECTS: dict[str, Any] = {NORM: lambda *values: norm_map(*values)}
_SCALINGS: set[str] = set()
_KINDS: dict[Callee, list[str]] = {}
for _form, _effect in _MAPS.items():
    _keys = _form.target.keys()
    _kind = ("r" if _form.inputs[0] is BY else "") + next(op for what, op in _keys if what == "op")
    _FORMS[_kind], _EFFECTS[_kind] = _form, _effect
    if _effect(*[1] * (len(_form.inputs) - 1))[1] == 0:
        _SCALINGS.add(_kind)
    for _key in _keys:
        _KINDS.setdefault(_key, []).append(_kind)
ANY_AFFINE = call("add") | call("sub") | call("mul") | call("div") | call("neg")


def norm_map(gamma: Any, beta: Any, mean: Any, variance: Any, eps: float) -> tuple[Any, Any]:
    """(scale, shift) of a batch norm in evaluation, from its values by channels in float64."""
    scale = gamma / np.sqrt(variance + eps)
    return scale, beta - mean * scale


@dataclass(frozen=True, slots=True)
class Form:
    """One operation that is an affine map: its kind, x, and what stands beside it (numbers, nodes of constants)."""

    expr: Expr
    kind: str
    x: TensorNode
    beside: tuple[Any, ...]
    eps: tuple[float, ...] = ()

    @property
    def shifts(self) -> bool:
        """True for a map that does more than scale."""
        return self.kind not in _SCALINGS


def form_of(expr: Expr) -> Form | None:
    """The map that a call or an op is, with a number or a fixed tensor beside a value; None for anything else."""
    for kind in _KINDS.get(expr.callee, ()):
        matched = match(_FORMS[kind], expr.outputs[0])
        if matched is not None:
            return Form(expr, kind, matched[X], (matched[BY],) if BY in matched else ())
    if isinstance(expr, Apply) and expr.op == NORM:
        x, *beside = expr.inputs
        if len(beside) == 4 and all(isinstance(n.expr, Constant) for n in beside):
            return Form(expr, expr.op, x, tuple(beside), (expr.attrs["eps"],))
    return None


# ---------------------------------------------------------------- by numbers


@dataclass(frozen=True, slots=True)
class Affine:
    """`scale * x + shift` of a node by numbers: *additive* if the scale is 1 or -1, *scaling* if the shift is 0."""

    x: TensorNode
    scale: Any
    shift: Any

    @property
    def additive(self) -> bool:
        """True if it only shifts, or reflects and shifts."""
        return self.scale in (1, -1)

    @property
    def scaling(self) -> bool:
        """True if it only scales."""
        return self.shift == 0

    @property
    def tame(self) -> bool:
        """True for numbers with which arithmetic may be reassociated."""
        return is_tame(self.x, self.scale, self.shift)


def affine_of(expr: Expr) -> Affine | None:
    """What a call of arithmetic with one number does; None for anything else."""
    form = form_of(expr)
    if form is None or not all(is_number(v) and math.isfinite(v) for v in form.beside):
        return None
    try:
        with np.errstate(all="ignore"):
            scale, shift = _EFFECTS[form.kind](*form.beside)
    except ZeroDivisionError:
        return None
    return Affine(form.x, scale, shift) if math.isfinite(scale) else None


def fits(node: Any, affine: Affine) -> bool:
    """True if a map gives values of the kind that it gets, so that it can have other numbers."""
    dtype = storage_of(affine.x.dtype)
    whole = all(isinstance(v, int) for v in (affine.scale, affine.shift))
    return affine.x.spec == node.spec and (is_float(affine.x.dtype) or (dtype.kind == "i" and whole))


def is_number(value: Any) -> bool:
    """True for a number that is no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_tame(node: TensorNode, scale: Any, shift: Any) -> bool:
    """True for numbers with which arithmetic may be reassociated: nothing overflows, nothing is rounded on purpose."""
    dtype = storage_of(node.dtype)
    if dtype.kind == "i":
        most_added = most_scaled = 2.0 ** (8 * dtype.itemsize - 2)
    else:
        info = ml_dtypes.finfo(dtype)
        most_added, most_scaled = 2.0 ** (info.nmant - 8), 2.0 ** (info.maxexp // 3)
    sizes = np.abs(scale)
    small = np.all(sizes >= 1 / most_scaled) and np.all(sizes <= most_scaled)
    return bool(small and np.all(np.abs(shift) <= most_added))


# ---------------------------------------------------------------- by channels


def composed(recipe: Sequence[Any], ndim: int, axis: int, channels: int) -> tuple[np.ndarray, np.ndarray] | None:
    """(scale, shift) by channels of maps one after the other, in float64; None where a constant differs otherwise.

    Args:
        recipe: (kind, eps, nodes of constants) of each map.
        ndim: axes of the value.
        axis: that of its channels.
        channels: their number.
    """
    scale, shift = np.ones(channels), np.zeros(channels)
    for kind, eps, constants in recipe:
        arrays = [node.expr.value.numpy() for node in constants]
        if kind == NORM:
            arrays = [array.reshape(-1, *[1] * (ndim - 2)) for array in arrays]
        values = [_by_channel(array, ndim, axis, channels) for array in arrays]
        if any(v is None for v in values):
            return None
        with np.errstate(all="ignore"):
            factor, offset = _EFFECTS[kind](*values, *([eps] if kind == NORM else []))
        scale, shift = scale * factor, shift * factor + offset
    return scale, shift


def _by_channel(value: np.ndarray, ndim: int, axis: int, channels: int) -> np.ndarray | None:
    """One value a channel in float64; None for a constant that differs along another axis."""
    shape = (1,) * (ndim - value.ndim) + value.shape
    if value.ndim > ndim or any(n != 1 for i, n in enumerate(shape) if i != axis) or shape[axis] not in (1, channels):
        return None
    return np.broadcast_to(np.asarray(value, np.float64).reshape(-1), channels)
