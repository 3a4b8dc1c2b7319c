"""Arithmetic with numbers: chains in one call, and calls in one form."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.core.dtype import is_float, storage_of
from megengine.traced_module.ir.expr import CallMethod
from megengine.traced_module.passes.layer_uses import only_user
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.passes.rewriting import Found, Rule
from megengine.traced_module.passes.steps import ANY_STEP, Step, step_of
from megengine.traced_module.patterns import any_, call, const


def fits(node: Any, step: Step) -> bool:
    """True if a call gives what it gets, so that the same by other numbers does too."""
    dtype = storage_of(step.x.dtype)
    whole = all(isinstance(v, int) for v in (step.scale, step.shift))
    return step.x.spec == node.spec and (is_float(step.x.dtype) or (dtype.kind == "i" and whole))


# ---------------------------------------------------------------- chains


def _join(m: Found) -> Any:
    outer = step_of(m.root.expr)
    inner = None if outer is None else step_of(outer.x.expr)
    if outer is None or inner is None or only_user(outer.x) is not m.root.expr:
        return None
    if not (inner.additive and outer.additive) and not (inner.scaling and outer.scaling):
        return None
    both = Step(inner.x, inner.scale * outer.scale, inner.shift * outer.scale + outer.shift)
    joined = fits(m.root, outer) and fits(outer.x, inner) and inner.tame and outer.tame and both.tame
    return _call(both) if joined else None


def _call(step: Step) -> Any:
    x: Any = step.x
    if not step.scaling:
        return x + step.shift if step.scale == 1 else step.shift - x
    if isinstance(step.scale, int) and step.scale in (1, -1):
        return x if step.scale == 1 else -x
    return x * step.scale


_X, _INNER, _OUTER = any_(), const(), const()
_POWERS = call("pow", call("pow", _X, _INNER), _OUTER)


def _small(m: Found) -> bool:
    """True for powers of floats by small positive integers."""
    return is_float(m[_X].dtype) and all(type(m[e]) is int and 1 <= m[e] <= 8 for e in (_INNER, _OUTER))


FUSE_ADD_MUL = Pass.of_rules(  # `x * 2 * 3` is `x * 6`, `3 - (2 - x)` is `x + 1`, `(x ** 2) ** 3` is `x ** 6`
    "FuseAddMul",
    Rule("FuseAddMul", ANY_STEP, _join),
    Rule(
        "FuseAddMul", call("pow", call("pow", _X, _INNER), _OUTER), lambda m: m[_X] ** (m[_INNER] * m[_OUTER]), _small
    ),
)


# ---------------------------------------------------------------- normal form


def _normal_form(m: Found) -> Any:
    """`x + c` and `x * c`; `c - x` is `-x + c`, `x / c` is `x * (1 / c)`."""
    expr, step = m.root.expr, step_of(m.root.expr)
    normal = isinstance(expr, CallMethod) and expr.method in ("__add__", "__mul__")
    if step is None or normal or _NEGATION.target.matches(expr) or not fits(m.root, step):
        return None
    x: Any = step.x
    return x * step.scale if step.scaling else (x if step.scale == 1 else F.neg(x)) + step.shift


_NEGATION = call("neg")
NORM_ELEMWISE = Pass.of_rules("NormElemWise", Rule("NormElemWise", ANY_STEP, _normal_form), by_name_only=True)
