"""fuse: bring a float graph into the form the other passes read (constants folded into layers)."""

from __future__ import annotations

from megengine.quantization.match import is_op
from megengine.traced_module.expr import Apply, Constant
from megengine.traced_module.graph import InternalGraph
from megengine.traced_module.node import TensorNode
from megengine.traced_module.passes import run_passes


def fuse(graph: InternalGraph) -> InternalGraph:
    """A copy with batch norms and constant additions after a convolution folded into its weight and bias."""
    g = graph.clone()
    run_passes(g)
    for expr in g.exprs:
        if is_op(expr, "add"):
            fold_bias(g, expr)
    g.remove_dead()
    return g


def fold_bias(g: InternalGraph, add: Apply) -> bool:
    """conv2d without bias + constant of one value per channel -> conv2d with bias; True if changed."""
    for product, bias in (add.inputs, add.inputs[::-1]):
        conv = product.expr
        if is_op(conv, "conv2d") and isinstance(bias.expr, Constant) and _only(g, product, add) and len(conv.inputs) == 2:
            channels = conv.inputs[1].shape[0]
            if bias.spec.size != channels or bias.shape[-3:] not in ((channels, 1, 1),):
                continue
            flat = g.constant(bias.expr.value.numpy().reshape(channels), name=f"{product.name}_bias", before=add)
            fused = g.apply("conv2d", *conv.inputs, flat, attrs=dict(conv.attrs), name=f"{product.name}_b", before=add)
            fused.expr.meta.update(conv.meta)
            g.replace_all_uses(add.outputs[0], fused)
            return True
    return False


def _only(g: InternalGraph, node: TensorNode, user: Apply) -> bool:
    return all(u is user for u in node.users) and not any(n is node for n in g.outputs)
