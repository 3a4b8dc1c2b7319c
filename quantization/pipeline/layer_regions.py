"""Which float ops one integer layer computes: the layer, its bias, a residual, activations and the rounding."""

from dataclasses import dataclass

from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.match import is_bias, is_product
from megengine.traced_module.ir.expr import Apply, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.linear import BIAS, BIASED, PRODUCT
from megengine.traced_module.patterns import match


@dataclass(frozen=True, slots=True)
class LayerRegion:
    """The ops behind an edge that one integer layer makes.

    Args:
        layer: the convolution or matrix product.
        bias, residual: what is added, where it is.
        ops: all its ops, the layer first and the one that makes the edge last.
    """

    layer: Apply
    bias: TensorNode | None
    residual: TensorNode | None
    ops: tuple[Apply, ...]


def layer_regions(graph: InternalGraph, annotation: Annotation) -> dict[str, LayerRegion]:
    """The regions of a float graph by the edges that they make."""
    found = {}
    for node in graph.nodes():
        if node.name in annotation.edges and isinstance(node, TensorNode):
            region = _region(node, annotation)
            if region is not None:
                found[node.name] = region
    return found


def _region(node: TensorNode, annotation: Annotation) -> LayerRegion | None:
    bias = residual = None
    ops: list[Apply] = []
    while True:
        expr: Expr = node.expr
        if not isinstance(expr, Apply) or (ops and node.name not in annotation.inside):
            return None
        ops.append(expr)
        if expr.record.weighted and expr.outputs[0].name in annotation.weights and not is_product(expr):
            bias = expr.inputs[2] if len(expr.inputs) > 2 else bias
            return LayerRegion(expr, bias, residual, tuple(reversed(ops)))
        if expr.record.rule.clamp is not None:
            node = expr.inputs[0]
        elif is_bias(expr):
            m = match(BIASED, expr.output)
            assert m is not None, expr
            node, bias = m[PRODUCT], m[BIAS]
        elif expr.record.rule.adds and residual is None:
            inside = [n for n in expr.inputs if n.name in annotation.inside]
            if len(inside) != 1:
                return None
            node = inside[0]
            residual = expr.inputs[1 - expr.inputs.index(node)]
        else:
            return None
