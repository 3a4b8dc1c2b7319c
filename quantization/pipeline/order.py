"""Sums of one order for the float layers of an integer network."""

import numpy as np

from megengine.ops.ordered import ORDERED
from megengine.quantization.checks import integer_form
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import call


def _ordered(m: Found) -> TensorNode:
    expr = m.root.expr
    return m.apply(ORDERED[expr.op], *expr.inputs, attrs=expr.attrs, name=m.root.name)


_RULES = [Rule("order", call(op).where(lambda node: node.dtype == np.float32), _ordered, shared=True) for op in ORDERED]


def in_one_order(graph: InternalGraph) -> InternalGraph:
    """A copy of an integer network whose float convolutions and products add in the order of the specification.

    Kernels of float networks choose their order, and the last bit of a sum may round to another integer behind it.
    Where weights alone are integers nothing is rounded behind a sum, and the layers stay as they are.
    """
    g = graph.clone()
    if integer_form(g) == "integer":
        rewrite(g, _RULES)
    return g
