"""Integer sums and means over axes that lie apart in memory: the axes are moved behind all others first.

Kernels of integers walk along neighbours. The results do not depend on the order, as sums of integers are exact.
"""

from __future__ import annotations

import math

from megengine.core.dtype import QuantizedDType
from megengine.ops.common import normalize_axes
from megengine.plan.layouts import choices
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead


def gather_axes(graph: InternalGraph) -> bool:
    """Change in place; True if something changed."""
    for expr in list(graph.exprs()):
        if isinstance(expr, Apply) and _reduces_integers(expr) and _has_no_kernel(expr):
            graph.replace_node({expr.output: _behind_all(graph, expr)})
    return bool(remove_dead(graph))


def _reduces_integers(expr: Apply) -> bool:
    return {"axis", "keepdims", "dtype"} <= expr.attrs.keys() and isinstance(expr.inputs[0].dtype, QuantizedDType)


def _has_no_kernel(expr: Apply) -> bool:
    return all(choices(expr, rows=rows, exact=True) is None for rows in (False, True))


def _behind_all(graph: InternalGraph, expr: Apply) -> TensorNode:
    """The same over the last axis of a matrix."""
    x = expr.inputs[0]
    axes = normalize_axes(expr.op, expr.attrs["axis"], x.spec.ndim)
    kept = tuple(i for i in range(x.spec.ndim) if i not in axes)
    sizes = tuple(math.prod(x.shape[i] for i in part) for part in (kept, axes))

    where = {"name": expr.name, "before": expr, "meta": expr.meta}
    turned = graph.apply("transpose", x, attrs={"perm": (*kept, *axes)}, **where)
    rows = graph.apply("reshape", turned, attrs={"shape": sizes}, **where)
    reduced = graph.apply(expr.op, rows, attrs={**expr.attrs, "axis": (1,), "keepdims": False}, **where)
    return graph.apply("reshape", reduced, attrs={"shape": expr.output.shape}, **where)
