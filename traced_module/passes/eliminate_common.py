"""EliminateCommon: calls that give the same are made once.

No rule: a pattern describes one call and what is before it, not two calls anywhere in a graph.
"""

from __future__ import annotations

from typing import Any

from megengine.traced_module.ir.expr import Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import mark
from megengine.traced_module.passes.fold_constants import call_key
from megengine.traced_module.passes.layer_uses import everywhere
from megengine.traced_module.passes.pass_manager import Pass


@everywhere
def eliminate_common(graph: InternalGraph) -> bool:
    """Calls of one function with the same arguments are made once. Random ones and assignments are left alone."""
    seen: dict[Any, Expr] = {}
    changed = False
    for expr in graph.exprs(recursive=False):
        key = call_key(expr)
        if key is None:
            continue
        first = seen.setdefault(key, expr)
        if first is not expr:
            mark([first], "EliminateCommon")
            graph.replace_node(dict(zip(expr.outputs, first.outputs, strict=True)))
            changed = True
    return changed


ELIMINATE_COMMON = Pass("EliminateCommon", eliminate_common)
