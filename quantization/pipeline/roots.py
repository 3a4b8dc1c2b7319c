"""Norms that are spelled out in ways that no integer op has: what leads to the root of a sum stays in float.

A norm divides by the root of a mean of squares. In 8 bits squares below half a step vanish, the mean of squares less
the square of the mean is mostly rounding, and where channels have norms of their own, roots of small values differ by
more than 8 bits hold. So it is with values that are divided by their own sum, as in a softmax whose largest element is
not taken away first. Sums are few, so float costs little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from megengine.quantization.pipeline.groups import Group
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import constant_value
from megengine.traced_module.patterns import Pattern, call, match

_QUOTIENT = call("div")
REASON = "it is part of a norm that is spelled out, whose sums need more bits"


def around_roots(exprs: Sequence[Apply], groups: Iterable[Group]) -> frozenset[str]:
    """Names of the results that stay in float: from what is summed to what is divided by the sum, or its root.

    Norms with an integer op, which are among `groups`, are left alone.
    """
    known = {id(e) for g in groups if g.rule.kind == "norm" for e in (*g.inside, g.root)}
    found: dict[int, Apply] = {}
    unsummed: set[int] = set()  # values that data reaches, so that the way back is walked once and not from each op
    for expr in exprs:
        if id(expr) not in known:
            found.update(_root(expr, unsummed) or _shares(expr, unsummed))
    statistics = {id(e.output) for e in found.values() if not _is_whole(e)}
    for expr in exprs:  # in the order of execution: what is made of statistics alone is one
        data = [n for n in expr.inputs if not isinstance(n.expr, Constant)]
        met = [id(n) in statistics for n in data]
        if id(expr) in known or not any(met):
            continue
        if all(met) and (_passes(expr) or _sums(expr)):
            statistics.add(id(expr.output))
            found[id(expr)] = expr
        elif _pointwise(expr):
            found[id(expr)] = expr
    return frozenset(e.output.name for e in found.values())


def _root(expr: Apply, unsummed: set[int]) -> dict[int, Apply]:
    """A root of sums, and the ops that lead to it; {} for all else."""
    if expr.op != "pow":
        is_root = expr.op in ("sqrt", "rsqrt")
    else:
        exponent = constant_value(expr.inputs[1])
        is_root = exponent is not None and np.size(exponent) == 1 and abs(float(np.reshape(exponent, ()))) == 0.5
    before = _before(expr.inputs[0], unsummed) if is_root else {}
    return {id(expr): expr, **before} if before else {}


def _shares(expr: Apply, unsummed: set[int]) -> dict[int, Apply]:
    """The ops that lead to the sum by which the values that are summed are divided; {} for all else."""
    quotient = _is(_QUOTIENT, expr)
    if not (quotient or _is(call("mul"), expr)):
        return {}
    for whole, by in (expr.inputs, expr.inputs[::-1])[: 1 if quotient else 2]:
        before = _before(by, unsummed)
        divides = quotient or any(_is(_QUOTIENT | call("pow"), e) for e in before.values())
        if divides and any(_sums(e) and e.inputs[0] is whole for e in before.values()):
            return before
    return {}


def _is(pattern: Pattern, expr: Apply) -> bool:
    return match(pattern, expr.outputs[0]) is not None


def _before(node: TensorNode, unsummed: set[int]) -> dict[int, Apply]:
    """The ops between sums and a value, with what makes the summed values; {} if data reaches it unsummed, which is
    noted.
    """
    found: dict[int, Apply] = {}
    waiting = [node]
    while waiting:
        here = waiting.pop()
        made = here.expr
        if isinstance(made, Constant) or id(made) in found:
            continue
        if id(here) in unsummed or not isinstance(made, Apply) or not (_sums(made) or _passes(made)):
            unsummed |= {id(node), id(here)}
            return {}
        found[id(made)] = made
        if _sums(made):
            found.update(_summed(made.inputs[0]))
        else:
            waiting.extend(made.inputs)
    return found if any(map(_sums, found.values())) else {}


def _summed(node: TensorNode) -> dict[int, Apply]:
    """The op that makes what is summed, a square for example, of one value."""
    made = node.expr
    if not isinstance(made, Apply) or not _pointwise(made) or made.record.rule.kind == "clamp":
        return {}
    data = {id(n) for n in made.inputs if not isinstance(n.expr, Constant)}
    return {id(made): made} if len(data) == 1 else {}


def _sums(expr: Any) -> bool:
    """True for a sum or mean of several numbers."""
    summed = isinstance(expr, Apply) and expr.record.rule.averages
    return summed and expr.output.spec.example.size < expr.inputs[0].spec.example.size


def _is_whole(expr: Apply) -> bool:
    """True for what is summed, which is as large as the data."""
    return any(_sums(u) for u in expr.output.users) and not _sums(expr)


def _passes(expr: Any) -> bool:
    return _pointwise(expr) or (isinstance(expr, Apply) and expr.record.rule.kind == "shape")


def _pointwise(expr: Any) -> bool:
    return isinstance(expr, Apply) and expr.record.rule.pointwise and len(expr.outputs) == 1
