"""Values that follow from sizes alone, such as positions and masks: no data decides them, but every length may."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import is_float
from megengine.dispatch import apply
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant


@dataclass(frozen=True, slots=True)
class SizeValues:
    """Names of computed values that sizes alone decide, and of those among them that are not finite at the example."""

    names: frozenset[str]
    not_finite: frozenset[str]


def size_values(exprs: Sequence[Apply]) -> SizeValues:
    """The values that ops in execution order compute without data; constants are folded before."""
    known: dict[int, np.ndarray] = {}
    names, not_finite = set(), set()
    for expr in exprs:
        values = [n.expr.value.numpy() if isinstance(n.expr, Constant) else known.get(id(n)) for n in expr.inputs]
        if not values or expr.record.random or any(value is None for value in values):
            continue
        results = apply(expr.op, *map(Tensor, values), **expr.attrs_at_example)
        for node, value in zip(expr.outputs, results if isinstance(results, tuple) else (results,), strict=True):
            known[id(node)] = value.numpy()
            names.add(node.name)
            if is_float(node.dtype) and not np.isfinite(known[id(node)]).all():
                not_finite.add(node.name)
    return SizeValues(frozenset(names), frozenset(not_finite))
