"""NormElemWise: arithmetic with numbers in one form."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.traced_module.ir.expr import CallMethod
from megengine.traced_module.passes.affine_maps import ANY_AFFINE, affine_of, fits
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.passes.rewriting import Found, Rule
from megengine.traced_module.patterns import call

_NEGATION = call("neg")


def _normal_form(m: Found) -> Any:
    """`x + c` and `x * c`; `c - x` is `-x + c`, `x / c` is `x * (1 / c)`."""
    expr, affine = m.root.expr, affine_of(m.root.expr)
    normal = isinstance(expr, CallMethod) and expr.method in ("__add__", "__mul__")
    if affine is None or normal or _NEGATION.target.matches(expr) or not fits(m.root, affine):
        return None
    x: Any = affine.x
    return x * affine.scale if affine.scaling else (x if affine.scale == 1 else F.neg(x)) + affine.shift


NORM_ELEMWISE = Pass.of_rules("NormElemWise", Rule("NormElemWise", ANY_AFFINE, _normal_form), by_name_only=True)
