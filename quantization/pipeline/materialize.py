"""materialize: explicit quantize / dequantize exprs, a graph that runs and is the QDQ export point."""

from megengine.core.dtype import QuantizedDType
from megengine.quantization.pipeline.annotate import Annotation
from megengine.quantization.pipeline.freeze import Frozen
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses, set_input
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead


def materialize(graph: InternalGraph, annotation: Annotation, frozen: Frozen) -> InternalGraph:
    """A copy of the float graph with a quantize / dequantize pair on every annotated edge and constant.

    Every reader of such an edge, float ones and outputs included, sees the rounded value.
    """
    g = graph.clone()
    layers = {e.outputs[0].name: e for e in g.exprs() if isinstance(e, Apply)}
    weights = {(name, 1): (weight, f"{name}_weight") for name, weight in frozen.weights.items()}
    others = {(name, at): (value, f"{name}_constant{at}") for (name, at), value in frozen.operands.items()}
    for (name, at), (value, label) in {**weights, **others}.items():
        node = g.constant(Tensor._wrap(value.values, value.dtype), name=f"{label}_q", before=layers[name])
        real = g.apply("dequantize", node, name=f"{label}_dq", before=layers[name])
        set_input(g, layers[name], at, real)
    for node in g.nodes():
        if isinstance(node, TensorNode) and node.name in annotation.edges:
            _round_edge(g, node, frozen.edges[node.name])
    remove_dead(g)
    return g


def _round_edge(g: InternalGraph, node: TensorNode, dtype: QuantizedDType) -> None:
    meta = {k: v for k, v in node.meta.items() if k in ("module", "source")} | {"edge": node.name}
    q = g.apply("quantize", node, attrs={"dtype": dtype}, name=f"{node.name}_q", after=node.expr, meta=meta)
    back = g.apply("dequantize", q, name=f"{node.name}_dq", after=q.expr, meta=meta)
    replace_all_uses(g, node, back, except_=(q.expr,))
