"""fold: pairs that change nothing go, a quantize of a dequantize with the same dtype."""

from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call

_STORED = any_()


def _changes_nothing(m: Found) -> bool:
    stored = m[_STORED]
    return stored.spec.dtype == m.root.expr.attrs["dtype"] and not isinstance(stored.expr, Constant)


_PAIR = Rule(
    "fold", call("quantize", call("dequantize", _STORED)), lambda m: m[_STORED], when=_changes_nothing, shared=True
)


def fold(graph: InternalGraph) -> InternalGraph:
    """A copy of a QDQ graph without such pairs."""
    g = graph.clone()
    rewrite(g, [_PAIR])
    return g
