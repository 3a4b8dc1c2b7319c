"""FixInputShape: shapes that a graph reads become what they were when it was traced.

No rule: whether a shape is fixed depends on all calls of a graph.
"""

from __future__ import annotations

from typing import Any

from megengine.core.spec import TensorSpec
from megengine.traced_module.ir.expr import SHAPE_OF, Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.queries import child_graph
from megengine.traced_module.passes.fold_constants import become_constant
from megengine.traced_module.passes.layer_uses import all_graphs, graphs_below
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.tracing.calls import shape_value


def fix_input_shapes(graph: InternalGraph) -> bool:
    """Shapes that the graph reads become what they were when it was traced; it holds for those shapes only then.

    A submodule that is called with several shapes is left alone.
    """
    changed = False
    for each in graphs_below(graph):
        # every call must enter the graph with the shapes that it was traced with
        have = _specs(each.inputs)
        calls = [e for g in all_graphs(each) for e in g.exprs(recursive=False) if child_graph(e) is each]
        if not all(_specs(call.inputs) == have for call in calls):
            continue
        for expr in each.exprs(recursive=False):
            known = isinstance(expr, Apply) and expr.op == SHAPE_OF
            if known and shape_value(expr.outputs[0]) is not None:
                become_constant(each, expr)
                changed = True
    return changed


def _specs(nodes: Any) -> list[TensorSpec]:
    return [n.spec for n in nodes if isinstance(n, TensorNode)]


FIX_INPUT_SHAPE = Pass("FixInputShape", fix_input_shapes, by_name_only=True)
