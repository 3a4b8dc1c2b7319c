"""Bias correction: take away the mean error that rounding leaves in every output channel."""

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.sizes import closed
from megengine.dispatch import apply
from megengine.quantization.pipeline.calibrate import input_axis
from megengine.quantization.pipeline.freeze import QuantizedWeight, real_weight
from megengine.quantization.ranges import TensorStatistics
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses, set_input
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes.linear import BIAS, addition_behind

PLACES = 8  # in each bin of a histogram, where its values are taken to lie


def mean_error(
    layer: Apply, seen: TensorStatistics, dtype: QuantizedDType | None, weight: QuantizedWeight
) -> np.ndarray:
    """Mean error per output channel of an integer layer.

    A layer is linear, so the mean of its output is its output for the mean input: the mean of every channel of the
    input of the float network (`seen`), in all places, with the layer's own borders. The integers of the input are
    off by the mean error of rounding all its values to `dtype` (None where weights alone are integers). The error is
    the layer's own, so corrections of all layers can be applied at once.
    """
    w, exact = layer.inputs[1].expr.value.numpy(), _even(layer, seen.means.value).astype(np.float32)
    kept = real_weight(layer, weight)
    rounded = exact if dtype is None else exact + np.float32(rounding_error(seen, dtype))
    attrs = closed(dict(layer.attrs))
    results = [apply(layer.op, Tensor(x), Tensor(v), **attrs).numpy() for x, v in ((exact, w), (rounded, kept))]
    channel = results[0].ndim - 1 if layer.record.rows else 1
    axes = tuple(i for i in range(results[0].ndim) if i != channel)
    return (results[0].astype(np.float64) - results[1]).mean(axis=axes)


def _even(layer: Apply, means: np.ndarray) -> np.ndarray:
    """An input with the same value in all places of a channel; a single place where all results are alike."""
    axis, shape, attrs = input_axis(layer), list(closed(layer.inputs[0].spec.shape)), layer.attrs
    window = () if layer.record.rows else (*layer.inputs[1].spec.shape[2:], *attrs["stride"])
    if all(n == 1 for n in window) and not np.any(attrs.get("padding", 0)):
        shape = [n if i == axis else 1 for i, n in enumerate(shape)]
    return np.broadcast_to(np.expand_dims(means, tuple(range(1, len(shape) - axis))), shape)


def rounding_error(seen: TensorStatistics, dtype: QuantizedDType) -> float:
    """Mean of what rounding to integers adds to the values of a tensor, by its histogram."""
    h, places = seen.histogram, (np.arange(PLACES) + 0.5) / PLACES
    x = (np.arange(h.first, h.first + len(h.counts))[:, None] + places) * h.width
    x = np.clip(x, seen.minimum, seen.maximum)
    scale, zero = dtype.only_scale, dtype.zero_point
    added = np.clip(np.rint(x / scale), dtype.qmin - zero, dtype.qmax - zero) * scale - x
    return float((h.counts * added.mean(axis=1)).sum() / seen.count)


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
