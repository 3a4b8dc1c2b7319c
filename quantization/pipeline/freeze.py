"""freeze: statistics and weights become frozen quantized dtypes and integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import QuantizedDType, quantized
from megengine.core.errors import CalibrationError, QuantizationError
from megengine.quantization.pipeline.annotate import Annotation
from megengine.quantization.pipeline.spec import Fixed, Plain, Shared, Weight
from megengine.quantization.ranges.methods import choose_range, weight_reach
from megengine.quantization.ranges.scales import WEIGHT, quantized_dtype, scale_and_zero, scheme
from megengine.quantization.ranges.statistics import TensorStatistics
from megengine.traced_module.ir.graph import InternalGraph


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers of a weight with their dtype."""

    values: np.ndarray
    dtype: QuantizedDType


@dataclass(frozen=True, slots=True)
class Frozen:
    """Dtypes of the integer edges by node name, weights by name of the layer's output node."""

    edges: dict[str, QuantizedDType]
    weights: dict[str, QuantizedWeight]


def freeze(graph: InternalGraph, annotation: Annotation, stats: dict[str, TensorStatistics]) -> Frozen:
    """Choose every scale.

    Raises:
        CalibrationError: an edge saw no value; it is named.
        QuantizationError: a weight is not finite; its layer is named.
    """
    edges = {name: edge_dtype(name, annotation, stats) for name in annotation.edges}
    weights = {}
    for expr in graph.exprs():
        name = expr.outputs[0].name if expr.outputs else ""
        if name in annotation.weights:
            weights[name] = quantize_weight(name, _value(expr.inputs[1]), annotation.weights[name])
    return Frozen(edges, weights)


def _value(node) -> np.ndarray:
    return node.expr.value.numpy()


def edge_dtype(name: str, annotation: Annotation, stats: dict[str, TensorStatistics]) -> QuantizedDType:
    """Dtype of one edge; a shared one takes its source's.

    Raises:
        CalibrationError: its observer saw nothing.
    """
    spec = annotation.edges[name]
    seen = [name]
    while isinstance(spec, Shared):
        if spec.source in seen:
            raise QuantizationError(f"edges {' -> '.join(seen)} share scales in a circle; one must have its own")
        seen.append(spec.source)
        spec = annotation.edges[spec.source]
    if isinstance(spec, Fixed):
        return spec.dtype
    assert isinstance(spec, Plain), spec
    if seen[-1] not in stats:
        raise CalibrationError(f"calibration: {seen[-1]!r} was not observed; calibrate with this annotation")
    how = scheme(spec.scheme)
    return quantized_dtype(*choose_range(stats[seen[-1]], spec.method, how), how)


def quantize_weight(name: str, w: np.ndarray, spec: Weight) -> QuantizedWeight:
    """Integers and scales of a float weight; an all-zero channel takes the largest scale of the others.

    Raises:
        QuantizationError: w holds NaN or infinity.
    """
    if not np.isfinite(w).all():
        raise QuantizationError(f"{name}: its weight holds NaN or infinity; expected finite weights")
    reach = weight_reach(w, spec.axis, spec.method, WEIGHT)
    if spec.axis is not None and reach.max(initial=0.0) > 0:
        reach = np.where(reach > 0, reach, reach.max())
    scale, _ = scale_and_zero(-reach, reach, WEIGHT)
    dtype = quantized("qint8_narrow", scale if spec.axis is not None else float(scale), 0, spec.axis)
    return QuantizedWeight(round_weight(w, dtype), dtype)


def round_weight(w: np.ndarray, dtype: QuantizedDType) -> np.ndarray:
    """Integers of float weights: true division in float32, ties to even."""
    scale = along_axis(dtype, w.ndim)
    return np.clip(np.rint(w.astype(np.float32) / scale), dtype.qmin, dtype.qmax).astype(dtype.storage)


def along_axis(dtype: QuantizedDType, ndim: int) -> np.ndarray:
    """Float32 scales shaped to broadcast over a tensor of `ndim` axes."""
    scale = np.asarray(dtype.scale, np.float32)
    if dtype.axis is None:
        return scale
    shape = [1] * ndim
    shape[dtype.axis] = -1
    return scale.reshape(shape)


def real(values: np.ndarray, dtype: QuantizedDType) -> np.ndarray:
    """Float32 values that the integers stand for."""
    return (values.astype(np.int32) - dtype.zero_point).astype(np.float32) * along_axis(dtype, values.ndim)
