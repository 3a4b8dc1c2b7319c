"""Bias correction: take away the mean error that rounding leaves in every output channel."""

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.dispatch import apply
from megengine.quantization.pipeline.calibrate import input_axis
from megengine.quantization.pipeline.freeze import QuantizedWeight, real_weight
from megengine.quantization.ranges import TensorStatistics
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply

PLACES = 8  # in each bin of a histogram, where its values are taken to lie


def mean_error(
    layer: Apply, seen: TensorStatistics, dtype: QuantizedDType | None, weight: QuantizedWeight
) -> np.ndarray:
    """Mean error per output channel of an integer layer.

    A layer is linear, so the mean of its output is its output for the mean input: the mean of every channel of the
    input of the float network (`seen`), in all places, with the layer's own borders. The integers of the input are
    off by the mean error of rounding all its values to `dtype` (None where weights alone are integers). The error is
    the layer's own, so corrections of all layers can be applied at once. It is 0 where sums pass float32, as those of
    values of 1e38 do.
    """
    w, exact = layer.inputs[1].expr.value.numpy(), _even(layer, seen.means.value).astype(np.float32)
    kept = real_weight(layer, weight)
    rounded = exact if dtype is None else exact + np.float32(rounding_error(seen, dtype))
    attrs = layer.attrs_at_example
    with np.errstate(over="ignore", invalid="ignore"):
        results = [apply(layer.op, Tensor(x), Tensor(v), **attrs).numpy() for x, v in ((exact, w), (rounded, kept))]
    channel = results[0].ndim - 1 if layer.record.rows else 1
    axes = tuple(i for i in range(results[0].ndim) if i != channel)
    with np.errstate(invalid="ignore"):
        error = (results[0].astype(np.float64) - results[1]).mean(axis=axes)
    return np.where(np.isfinite(error), error, 0.0)


def _even(layer: Apply, means: np.ndarray) -> np.ndarray:
    """An input with the same value in all places of a channel; a single place where all results are alike."""
    axis, shape, attrs = input_axis(layer), list(layer.inputs[0].spec.example.shape), layer.attrs
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
