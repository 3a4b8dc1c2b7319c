"""AttrToConstant: tensors of modules become constants of the graph.

No rule: a rule replaces calls, and not the reads of what they use.
"""

from __future__ import annotations

from megengine.traced_module.ir.expr import GetAttr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.fold_constants import become_constant
from megengine.traced_module.passes.layer_uses import everywhere
from megengine.traced_module.passes.pass_manager import Pass


@everywhere
def attributes_to_constants(graph: InternalGraph) -> bool:
    """Tensors of modules become constants of the graph, under their names."""
    changed = False
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, GetAttr) and isinstance(expr.output, TensorNode):
            become_constant(graph, expr)
            changed = True
    return changed


ATTRIBUTES_TO_CONSTANTS = Pass("AttrToConstant", attributes_to_constants, by_name_only=True)
