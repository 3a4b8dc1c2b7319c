"""materialize: explicit quantize / dequantize exprs, a graph that runs and is the QDQ export point."""

from collections.abc import Iterable, Mapping

from megengine.core.dtype import QuantizedDType
from megengine.quantization.checks import BOUNDED
from megengine.quantization.pipeline.freeze import Frozen, QuantizedWeight, turned
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses, set_attrs, set_inputs
from megengine.traced_module.ir.expr import Apply, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import exchange_outputs, remove_dead


def materialize(graph: InternalGraph, frozen: Frozen) -> InternalGraph:
    """A copy of the float graph with a quantize / dequantize pair on every integer edge and constant, and its biases.

    Every reader of such an edge sees the rounded value, but float ones that of one which is made in float: an input, or
    the result of another float op. It costs nothing there, and a sum with an input (a denoiser's) keeps all its digits.
    """
    g = graph.clone()
    ops = {e.outputs[0].name: e for e in g.exprs() if isinstance(e, Apply)}
    constants = {place: (bias, f"{place[0]}_bias") for place, bias in frozen.biases.items()}
    weights = {(name, 1): (weight, f"{name}_weight") for name, weight in frozen.weights.items()}
    others = {(name, at): (value, f"{name}_constant{at}") for (name, at), value in frozen.operands.items()}
    for (name, at), (value, label) in {**constants, **weights, **others}.items():
        op = ops[name]
        if isinstance(value, QuantizedWeight):
            node = g.constant(Tensor._wrap(value.values, value.dtype), name=f"{label}_q", before=op)
            node = g.apply("dequantize", node, name=f"{label}_dq", before=op)
            if node.shape != op.inputs[at].shape:
                node = _out_of_groups(g, op, at, node)
        else:
            node = g.constant(value, name=label, before=op)
        set_inputs(op, (*op.inputs[:at], node, *op.inputs[at + 1 :]))
    for name, layer in ops.items():
        if layer.record.rule.scans and name in frozen.edges and name in frozen.weights:
            set_attrs(g, layer, {"state": frozen.edges[name]})
    for node in g.nodes():
        if isinstance(node, TensorNode) and node.name in frozen.edges:
            marks = {BOUNDED: "nothing that reads it tells larger values apart"} if node.name in frozen.bounded else {}
            real = made_in_float(node, frozen)
            floats = [u for u in node.users if real and u.outputs and u.outputs[0].name in frozen.floating]
            rounded = round_edge(g, node, frozen.edges[node.name], marks, floats)
            if real and frozen.real_results:
                exchange_outputs(g, rounded, node)
    remove_dead(g)
    return g


def _out_of_groups(g: InternalGraph, layer: Apply, at: int, real: TensorNode) -> TensorNode:
    """A weight that is stored as [all groups, group] in its own shape."""
    label = "weight" if at == 1 else f"constant{at}"
    name, shape, is_turned = f"{layer.outputs[0].name}_{label}", layer.inputs[at].shape, turned(layer)
    flat = shape[::-1] if is_turned else shape
    whole = g.apply("reshape", real, attrs={"shape": flat}, name=f"{name}_whole", before=layer)
    return (
        g.apply("transpose", whole, attrs={"perm": (1, 0)}, name=f"{name}_turned", before=layer) if is_turned else whole
    )


def made_in_float(node: TensorNode, frozen: Frozen) -> bool:
    """True for an input of the network, and for the result of an op that stays in float."""
    return isinstance(node.expr, Input) or node.expr.outputs[0].name in frozen.floating


def round_edge(
    g: InternalGraph, node: TensorNode, dtype: QuantizedDType, marks: Mapping[str, str], except_: Iterable[Expr] = ()
) -> TensorNode:
    """Put a quantize / dequantize pair, which carries the marks, between a node and its other users; its result."""
    meta = {k: v for k, v in node.meta.items() if k in ("module", "source")} | {"edge": node.name, **marks}
    q = g.apply("quantize", node, attrs={"dtype": dtype}, name=f"{node.name}_q", after=node.expr, meta=meta)
    back = g.apply("dequantize", q, name=f"{node.name}_dq", after=q.expr, meta=meta)
    replace_all_uses(g, node, back, except_=(q.expr, *except_))
    return back
