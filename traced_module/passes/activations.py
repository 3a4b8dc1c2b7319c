"""Activations spelled out in elementary operations, and the ops that they are.

In integers these are one table lookup; in float plans the layer in front applies them.
"""

from typing import Any

import numpy as np

from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import Pattern, any_, call, const, fixed_value


def _number(value: float) -> Pattern:
    """A constant of one element that is the nearest number of its type to `value`; of float32 also a neighbour."""

    def equal(node: Any) -> bool:
        constant = fixed_value(node)
        if constant is None or constant.size != 1:
            return False
        nearest = float(np.asarray(value).astype(constant.dtype))
        return abs(float(constant.reshape(())) - nearest) <= 2e-7 * abs(value)

    return const().where(equal)


def _sixth(value: Pattern) -> Pattern:
    return call("div", value, _number(6.0)) | call("mul", value, _number(1 / 6))


_X = any_()
_SHIFTED = call("add", _X, _number(3.0))
_RAMP = call("relu6", _SHIFTED) | call("clip", _SHIFTED, lo=0, hi=6) | call("clip", _SHIFTED, lower=0, upper=6)


def _named(op: str, pattern: Pattern) -> Rule:
    def build(m: Found) -> TensorNode:
        return m.apply(op, m[_X], name=f"{m.root.name}_{op}")

    return Rule(op, pattern, build, when=lambda m: m[_X].shape == m.root.shape)


def _scaled(a: Pattern, b: Pattern, factor: Pattern) -> Pattern:
    """The product of the three, in any order."""
    return (
        call("mul", call("mul", a, b), factor)
        | call("mul", call("mul", a, factor), b)
        | call("mul", a, call("mul", b, factor))
    )


_ERF = call("erf", call("div", _X, _number(2**0.5)) | call("mul", _X, _number(0.5**0.5)))
_ERFC = call("sub", _number(1.0), call("erf", call("mul", call("neg", _X), _number(0.5**0.5))))

ACTIVATIONS = (
    _named("hswish", _sixth(call("mul", _X, _RAMP))),
    _named("hsigmoid", _sixth(_RAMP)),
    _named("hswish", call("mul", _X, call("hsigmoid", _X))),
    _named("silu", call("mul", _X, call("sigmoid", _X))),
    _named("gelu", _scaled(_X, call("add", _ERF, _number(1.0)) | _ERFC, _number(0.5))),
)


def name_activations(graph: InternalGraph) -> bool:
    """`x * sigmoid(x)` becomes silu, `relu6(x + 3) / 6` hsigmoid, `x` times that hswish, `x (1 + erf(x / sqrt(2))) / 2`
    gelu, with `erfc(-x / sqrt(2))` too; True if anything changed.

    Float results change by rounding only.
    """
    return bool(rewrite(graph, ACTIVATIONS))
