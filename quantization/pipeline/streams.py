"""Residual streams: sums that norms and further sums read, and nothing that multiplies them with weights."""

from collections.abc import Callable, Collection

from megengine.dispatch import QuantRule
from megengine.quantization.pipeline.match import is_bias
from megengine.traced_module.ir.expr import Apply, Expr

REASON = "16 bits: a sum that norms and further sums alone read"


def residual_sums(
    exprs: list[Apply],
    integer: Collection[int],
    outputs: Collection[int],
    rule: Callable[[Expr], QuantRule],
    root: Callable[[Expr], Expr],
) -> set[str]:
    """Names of the sums of residual streams in a network.

    All that reads such a sum is a norm or another sum, in integers, and a norm stands at the end of one of the ways
    through sums of the same kind. What a layer or a function reads besides is none.

    Args:
        exprs: ops of the network, in order.
        integer: ids of the ops that become integers, groups by their ends.
        outputs: ids of the results of the network.
        rule: what an op, or the end of a group, is to integers.
        root: the end of the group to which an op belongs; the op itself outside of groups.
    """
    found: dict[int, str] = {}
    for expr in reversed(exprs):
        if id(expr) not in integer or not rule(expr).adds or is_bias(expr) or id(expr.output) in outputs:
            continue
        readers = {id(r): r for r in map(root, expr.output.users)}.values()
        norms = [id(r) in integer and rule(r).kind == "norm" for r in readers]
        sums = [id(r) in integer and rule(r).adds and not is_bias(r) for r in readers]
        ends = any(norms) or any(id(r) in found for r in readers)
        if ends and all(a or b for a, b in zip(norms, sums, strict=True)):
            found[id(expr)] = expr.output.name
    return set(found.values())
