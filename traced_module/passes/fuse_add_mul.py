"""FuseAddMul: chains of arithmetic with numbers in one call."""

from __future__ import annotations

from typing import Any

from megengine.core.dtype import is_float
from megengine.traced_module.passes.affine_maps import ANY_AFFINE, Affine, affine_of, fits
from megengine.traced_module.passes.layer_uses import only_user
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.passes.rewriting import Found, Rule
from megengine.traced_module.patterns import any_, call, const


def _join(m: Found) -> Any:
    outer = affine_of(m.root.expr)
    inner = None if outer is None else affine_of(outer.x.expr)
    if outer is None or inner is None or only_user(outer.x) is not m.root.expr:
        return None
    if not (inner.additive and outer.additive) and not (inner.scaling and outer.scaling):
        return None
    both = Affine(inner.x, inner.scale * outer.scale, inner.shift * outer.scale + outer.shift)
    joined = fits(m.root, outer) and fits(outer.x, inner) and inner.tame and outer.tame and both.tame
    return _call(both) if joined else None


def _call(affine: Affine) -> Any:
    x: Any = affine.x
    if not affine.scaling:
        return x + affine.shift if affine.scale == 1 else affine.shift - x
    if isinstance(affine.scale, int) and affine.scale in (1, -1):
        return x if affine.scale == 1 else -x
    return x * affine.scale


_X, _INNER, _OUTER = any_(), const(), const()


def _small(m: Found) -> bool:
    """True for powers of floats by small positive integers."""
    return is_float(m[_X].dtype) and all(type(m[e]) is int and 1 <= m[e] <= 8 for e in (_INNER, _OUTER))


FUSE_ADD_MUL = Pass.of_rules(  # `x * 2 * 3` is `x * 6`, `3 - (2 - x)` is `x + 1`, `(x ** 2) ** 3` is `x ** 6`
    "FuseAddMul",
    Rule("FuseAddMul", ANY_AFFINE, _join),
    Rule(
        "FuseAddMul", call("pow", call("pow", _X, _INNER), _OUTER), lambda m: m[_X] ** (m[_INNER] * m[_OUTER]), _small
    ),
)
