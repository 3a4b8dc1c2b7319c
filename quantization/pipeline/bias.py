"""Bias correction: take away the mean error that rounding leaves in every output channel."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.sizes import closed, is_open
from megengine.dispatch import apply
from megengine.kernels.reference import integer
from megengine.quantization.pipeline.freeze import Frozen
from megengine.quantization.ranges import MeanValue, Progress, stream
from megengine.tensor import Tensor
from megengine.traced_module.editing.rewiring import replace_all_uses, set_input
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes.linear import BIAS, addition_behind


@dataclass(slots=True)
class InputMeans:
    """Means of a layer's input before rounding (in the rounded network) and after."""

    exact: MeanValue = field(default_factory=MeanValue)
    rounded: MeanValue = field(default_factory=MeanValue)


def mean_errors(
    graph: InternalGraph,
    qdq: InternalGraph,
    frozen: Frozen,
    batches: Iterable[Any],
    *,
    progress: Progress | None = None,
) -> dict[str, np.ndarray]:
    """Mean error per output channel of every integer layer, by name of its output node.

    A layer is linear, so the mean of its output is its output for the mean input: one mean picture per edge is kept for
    any number of batches, and borders are exact; where sizes are open, pictures are even, with borders as at the
    example. The error is the layer's own (its weights and the rounding of its input), so corrections of all layers can
    be applied at once.
    """
    layers = [e for e in graph.exprs() if isinstance(e, Apply) and e.outputs[0].name in frozen.weights]
    means = {e.inputs[0].name: InputMeans() for e in layers}
    readers = {e.inputs[0].name: e for e in layers}

    sinks = {name: _update(one.exact, readers[name]) for name, one in means.items()}
    for expr in qdq.exprs():
        if isinstance(expr, Apply) and expr.record.dequantizes and (edge := expr.meta.get("edge")) in means:
            sinks[expr.output.name] = _update(means[edge].rounded, readers[edge])
    stream(qdq, batches, sinks, stage="bias correction", progress=progress)
    return {e.outputs[0].name: _error(e, means[e.inputs[0].name], frozen) for e in layers}


def _update(means: MeanValue, layer: Apply) -> Callable[[np.ndarray], None]:
    """What takes a batch of a layer's input: pictures of open sizes count by the mean of each channel."""
    shape = layer.inputs[0].spec.shape
    if not is_open(shape[1:]):
        return means.update
    channel = 1 if not layer.record.rows else len(shape) - (2 if layer.attrs["transpose_a"] else 1)
    axes = tuple(axis for axis in range(1, len(shape)) if axis != channel)

    def update(x: np.ndarray) -> None:
        even = x.mean(axis=axes, dtype=np.float64, keepdims=True)
        means.update(np.broadcast_to(even, (len(x), *closed(shape[1:]))))

    return update


def _error(layer: Apply, means: InputMeans, frozen: Frozen) -> np.ndarray:
    weight = frozen.weights[layer.outputs[0].name]
    w = layer.inputs[1].expr.value.numpy()
    attrs = closed(dict(layer.attrs))
    exact = apply(layer.op, Tensor(means.exact.value), Tensor(w), **attrs).numpy()
    kept = integer.dequantize(weight.values, weight.dtype.scale, weight.dtype.zero_point, weight.dtype.axis)
    rounded = apply(layer.op, Tensor(means.rounded.value), Tensor(kept), **attrs).numpy()
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
