"""materialize: explicit quantize / dequantize exprs, a graph that runs and is the QDQ export point."""

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.quantization.pipeline.annotate import Annotation
from megengine.quantization.pipeline.freeze import Frozen, turned
from megengine.quantization.pipeline.match import stored
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses, set_input
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes.linear import BIAS, addition_behind

_LARGEST_BIAS = 2**30  # steps: the sum of a layer and its bias has to fit int32


def materialize(graph: InternalGraph, annotation: Annotation, frozen: Frozen) -> InternalGraph:
    """A copy of the float graph with a quantize / dequantize pair on every annotated edge and constant.

    Every reader of such an edge, float ones and outputs included, sees the rounded value. The bias of a layer becomes a
    whole number of steps of its sum, so that a runtime may add it as an int32.
    """
    g = graph.clone()
    layers = {e.outputs[0].name: e for e in g.exprs() if isinstance(e, Apply)}
    weights = {(name, 1): (weight, f"{name}_weight") for name, weight in frozen.weights.items()}
    others = {(name, at): (value, f"{name}_constant{at}") for (name, at), value in frozen.operands.items()}
    for (name, at), (value, label) in {**weights, **others}.items():
        node = g.constant(Tensor._wrap(value.values, value.dtype), name=f"{label}_q", before=layers[name])
        real = g.apply("dequantize", node, name=f"{label}_dq", before=layers[name])
        old = layers[name].inputs[at]
        if real.shape != old.shape:  # in groups
            real = _out_of_groups(g, layers[name], real, old.shape)
        set_input(g, layers[name], at, real)
    for node in g.nodes():
        if isinstance(node, TensorNode) and node.name in annotation.edges:
            round_edge(g, node, frozen.edges[node.name])
    for name in frozen.weights:
        _round_bias(g, layers[name])
    remove_dead(g)
    return g


def _out_of_groups(g: InternalGraph, layer: Apply, real: TensorNode, shape: tuple[int, ...]) -> TensorNode:
    name, is_turned = f"{layer.output.name}_weight", turned(layer)
    flat = shape[::-1] if is_turned else shape
    whole = g.apply("reshape", real, attrs={"shape": flat}, name=f"{name}_whole", before=layer)
    return (
        g.apply("transpose", whole, attrs={"perm": (1, 0)}, name=f"{name}_turned", before=layer) if is_turned else whole
    )


def _round_bias(g: InternalGraph, layer: Apply) -> None:
    addition = addition_behind(layer.output)
    owner, places = (layer, layer.inputs[2:]) if addition is None else (addition.root.expr, (addition[BIAS],))
    data, weight = map(stored, layer.inputs[:2])
    if not places or places[0].spec.ndim != 1 or data is None or weight is None:
        return
    scale = np.float32(data.dtype.only_scale) * np.asarray(weight.dtype.scale, np.float32)
    real = places[0].expr.value.numpy()
    if scale.size not in (1, real.size) or not np.all(np.abs(real) < _LARGEST_BIAS * scale.astype(np.float64)):
        return
    steps = np.rint(real / scale.astype(np.float64)).astype(np.float32)
    rounded = g.constant(steps * scale, name=f"{layer.output.name}_bias", before=owner)
    set_input(g, owner, owner.inputs.index(places[0]), rounded)


def round_edge(g: InternalGraph, node: TensorNode, dtype: QuantizedDType, **marks: str) -> None:
    """Put a quantize / dequantize pair between a node and its users; both exprs carry the marks."""
    meta = {k: v for k, v in node.meta.items() if k in ("module", "source")} | {"edge": node.name, **marks}
    q = g.apply("quantize", node, attrs={"dtype": dtype}, name=f"{node.name}_q", after=node.expr, meta=meta)
    back = g.apply("dequantize", q, name=f"{node.name}_dq", after=q.expr, meta=meta)
    replace_all_uses(g, node, back, except_=(q.expr,))
