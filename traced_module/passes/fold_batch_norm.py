"""fold_batch_norm: batch norms in evaluation become part of the convolutions before them, in graphs of ops."""

from __future__ import annotations

import numpy as np

from megengine.dispatch import registry
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.folding import folded_constants
from megengine.traced_module.passes.rewriting import Found, Rule, rewrite
from megengine.traced_module.patterns import any_, call, const, constant_value, either

_CONVS = [name for name, op in registry.items() if op.weighted and "conv" in name]
_CONV = either(call(op, any_(), *[const() for _ in range(n)]) for op in _CONVS for n in (1, 2))
_NORM = call("batch_norm", _CONV, *[const() for _ in range(4)])


def _fold(m: Found) -> TensorNode:
    conv, norm, m.origin = m.expr(_CONV), m.root.expr, m[_CONV]
    fixed = [*conv.inputs[1:], *norm.inputs[1:]]
    folded = m.graph.journal.computed(folded_constants, conv.op, conv.attrs["groups"], norm.attrs["eps"], fixed)
    weight = m.constant(folded[0], fixed[0].name, meta=fixed[0].meta)
    bias = m.constant(folded[1], f"{conv.name}_bias", meta={})
    new = m.apply(conv.op, conv.inputs[0], weight, bias, attrs=conv.attrs, name=conv.name)
    m.names += [(weight, fixed[0].name), (new, conv.name)]
    return new


def _divides(m: Found) -> bool:
    """True if there is something to divide by; else the batch norm stays where it is seen."""
    norm = m.root.expr
    return bool(np.all(constant_value(norm.inputs[4]) + norm.attrs["eps"] > 0))


FOLD_BATCH_NORM = Rule("fold_batch_norm", _NORM, _fold, when=_divides)


def fold_batch_norm(graph: InternalGraph) -> bool:
    """Batch norm in evaluation after a convolution only it uses becomes part of weight and bias (float64, then cast).

    A weight shared with another convolution stays as it is there: the folded one gets its own constant. The convolution
    keeps its name.
    """
    return bool(rewrite(graph, [FOLD_BATCH_NORM]))
