"""canonicalize: bring a float graph into the form the other passes read (constants folded into layers)."""

from __future__ import annotations

import numpy as np

from megengine.quantization.pipeline.activations import name_activations
from megengine.quantization.pipeline.match import is_op
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import constant_value, run_passes


def canonicalize(graph: InternalGraph) -> InternalGraph:
    """A copy with constants computed, batch norms and constant additions folded into convolutions, and activations
    that are spelled out named.
    """
    g = graph.clone()
    run_passes(g)
    name_activations(g)
    for expr in g.exprs():
        if isinstance(expr, Apply):
            open_split(g, expr) or norm_as_layer(g, expr)
    remove_dead(g)
    return g


def open_split(g: InternalGraph, split: Apply) -> bool:
    """A split becomes a slice for each part, which moves integers as any slice; True if changed."""
    if not is_op(split, "split"):
        return False
    x, axis, start = split.inputs[0], split.attrs["axis"] % len(split.inputs[0].shape), 0
    for out in split.outputs:
        stop = start + out.shape[axis]
        ranges = [(start, stop) if i == axis else (0, n) for i, n in enumerate(x.shape)]
        starts, stops = zip(*ranges, strict=True)
        attrs = {"starts": starts, "stops": stops, "steps": (1,) * len(ranges)}
        part = g.apply("slice", x, attrs=attrs, name=f"{out.name}_part", before=split, meta=dict(split.meta))
        replace_all_uses(g, out, part)
        start = stop
    return True


def norm_as_layer(g: InternalGraph, norm: Apply) -> bool:
    """batch_norm that no convolution before it could take -> 1x1 depthwise convolution, a layer with integers.

    Its one weight a channel has a scale of its own, so that rounding it to an integer changes nothing.
    """
    if not is_op(norm, "batch_norm") or len(norm.inputs[0].shape) != 4:
        return False
    gamma, beta, mean, variance = (constant_value(node) for node in norm.inputs[1:])
    if gamma is None or beta is None or mean is None or variance is None:
        return False
    factor = gamma.astype(np.float64).reshape(-1) / np.sqrt(variance.astype(np.float64).reshape(-1) + norm.attrs["eps"])
    offset = beta.astype(np.float64).reshape(-1) - mean.reshape(-1) * factor
    meta = {"before": norm, "meta": dict(norm.meta)}
    w = g.constant(factor.astype(np.float32).reshape(-1, 1, 1, 1), name=f"{norm.name}_weight", **meta)
    b = g.constant(offset.astype(np.float32), name=f"{norm.name}_bias", **meta)
    window = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": len(factor)}
    layer = g.apply("conv2d", norm.inputs[0], w, b, attrs=window, name=f"{norm.name}_layer", **meta)
    replace_all_uses(g, norm.outputs[0], layer)
    return True
