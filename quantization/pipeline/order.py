"""Sums of one order for the float layers of an integer network."""

import numpy as np

from megengine.ops.ordered import ORDERED
from megengine.quantization.checks import integer_form
from megengine.traced_module.bodies import Body, bodies_of
from megengine.traced_module.editing.rewiring import set_attrs
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import call


def _ordered(m: Found) -> TensorNode:
    expr = m.root.expr
    new = m.apply(ORDERED[expr.op], *expr.inputs, attrs=expr.attrs, name=m.root.name)
    m.names.append((new, m.root.name))
    return new


_RULES = [Rule("order", call(op).where(lambda node: node.dtype == np.float32), _ordered, shared=True) for op in ORDERED]


def put_in_order(graph: InternalGraph) -> None:
    """Let the float convolutions and products of an integer network add in the order of the specification.

    Kernels of float networks choose their order, and the last bit of a sum may round to another integer behind it.
    Where weights alone are integers nothing is rounded behind a sum, and the layers stay as they are.
    """
    if integer_form(graph) in ("integer", "qdq"):
        _put_in_order(graph)


def _put_in_order(graph: InternalGraph) -> bool:
    changed = rewrite(graph, _RULES) > 0
    for expr in [e for e in graph.exprs() if isinstance(e, Apply)]:
        bodies = {name: body for name, old in bodies_of(expr) if (body := _body_in_order(old)) is not old}
        if bodies:
            set_attrs(graph, expr, bodies)
            changed = True
    return changed


def _body_in_order(body: Body) -> Body:
    graph = body.graph.clone()
    return Body(graph) if _put_in_order(graph) else body
