"""Bias correction: take away the mean error that rounding leaves in every output channel."""

import numpy as np

from megengine.core.sizes import closed
from megengine.dispatch import apply
from megengine.quantization.pipeline.freeze import QuantizedWeight, real_weight
from megengine.quantization.pipeline.moments import LayerInputs
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses, set_input
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes.linear import BIAS, addition_behind


def mean_error(one: LayerInputs, weight: QuantizedWeight) -> np.ndarray:
    """Mean error per output channel of an integer layer.

    A layer is linear, so the mean of its output is its output for the mean input: one mean picture per edge is enough
    for any number of batches, and borders are exact; where sizes are open, pictures are even, with borders as at the
    example. The error is the layer's own (its weights and the rounding of its input), so corrections of all layers can
    be applied at once.
    """
    layer, means = one.layer, one.means
    w = layer.inputs[1].expr.value.numpy()
    attrs = closed(dict(layer.attrs))
    exact = apply(layer.op, Tensor(means.exact.value), Tensor(w), **attrs).numpy()
    seen = means.rounded if means.rounded.pictures else means.exact  # where weights alone are integers
    rounded = apply(layer.op, Tensor(seen.value), Tensor(real_weight(layer, weight)), **attrs).numpy()
    channel = exact.ndim - 1 if layer.record.rows else 1
    axes = tuple(i for i in range(exact.ndim) if i != channel)
    return (exact.astype(np.float64) - rounded).mean(axis=axes)


def corrected(graph: InternalGraph, errors: dict[str, np.ndarray]) -> InternalGraph:
    """A copy of the float graph with every bias raised by the mean error of its layer."""
    g = graph.clone()
    for expr in g.exprs():
        if isinstance(expr, Apply) and expr.outputs[0].name in errors:
            _raise_bias(g, expr, errors[expr.outputs[0].name])
    remove_dead(g)
    return g


def _raise_bias(g: InternalGraph, layer: Apply, error: np.ndarray) -> None:
    out, name = layer.output, layer.output.name
    addition = addition_behind(out) if layer.record.rows else None
    if layer.record.rows and addition is None:
        return
    owner, bias = (layer, layer.inputs[2:]) if addition is None else (addition.root.expr, [addition[BIAS]])
    old = bias[0].expr.value.numpy() if bias else np.zeros(len(error), np.float32)
    new = (old.astype(np.float64) + error.reshape(old.shape)).astype(np.float32)
    node = g.constant(new, name=f"{name}_bias_corrected", before=owner)
    if bias:
        set_input(g, owner, owner.inputs.index(bias[0]), node)
        return
    biased = g.apply(layer.op, *layer.inputs, node, attrs=dict(layer.attrs), name=f"{name}_biased", after=layer)
    replace_all_uses(g, out, biased)
    g.erase(layer)
    g.rename(biased, name)
