"""fold: pairs that change nothing go, and those that stand in a file for other runtimes only."""

from megengine.dispatch import apply
from megengine.quantization.pipeline.match import over_picture
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes.activations import name_activations
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call, const

_STORED, _REAL = any_(), any_()

INSIDE = "inside"  # mark of a pair inside one integer op, which does not round there


def _changes_nothing(m: Found) -> bool:
    stored = m[_STORED]
    return stored.spec.dtype == m.root.expr.attrs["dtype"] and not isinstance(stored.expr, Constant)


_PAIR = Rule(
    "fold", call("quantize", call("dequantize", _STORED)), lambda m: m[_STORED], when=_changes_nothing, shared=True
)


def _is_inside(m: Found) -> bool:
    return INSIDE in m.root.expr.meta


_STORED_NUMBER = const()
_FOR_OTHERS = (
    Rule("fold", call("dequantize", call("quantize", _REAL)), lambda m: m[_REAL], when=_is_inside, shared=True),
    Rule(
        "fold",
        call("dequantize", _STORED_NUMBER),
        lambda m: m.constant(apply("dequantize", m[_STORED_NUMBER].expr.value), m.root.name),
        when=_is_inside,
    ),
)

_POOLED = call("mean", _REAL, keepdims=True)
_MEAN = Rule(
    "fold",
    call("reshape", _POOLED),
    lambda m: m.apply("mean", m[_REAL], attrs={"axis": (2, 3), "keepdims": False}, name=m.root.name),
    when=lambda m: over_picture(m.expr(_POOLED)) and m.root.shape == m[_REAL].shape[:2],
)


def fold(graph: InternalGraph) -> InternalGraph:
    """A copy of a QDQ graph without such pairs, and with activations and means that a file spells out as one op."""
    g = graph.clone()
    rewrite(g, [*_FOR_OTHERS, _PAIR, _MEAN])
    name_activations(g)
    return g
