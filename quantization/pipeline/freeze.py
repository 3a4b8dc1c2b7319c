"""freeze: statistics and weights become frozen quantized dtypes and integers."""

from dataclasses import dataclass

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import CalibrationError, QuantizationError
from megengine.kernels.reference import integer
from megengine.quantization.pipeline.annotate import Annotation
from megengine.quantization.pipeline.spec import Fixed, Plain, QSpec, Shared, Weight
from megengine.quantization.ranges import TensorStatistics, activation_dtype, weight_dtype
from megengine.traced_module.ir.graph import InternalGraph


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers of a weight with their dtype."""

    values: np.ndarray
    dtype: QuantizedDType


@dataclass(frozen=True, slots=True)
class Frozen:
    """Dtypes of the integer edges by node name, weights by name of the layer's output node, other constants by name and
    place.
    """

    edges: dict[str, QuantizedDType]
    weights: dict[str, QuantizedWeight]
    operands: dict[tuple[str, int], QuantizedWeight]


def freeze(graph: InternalGraph, annotation: Annotation, stats: dict[str, TensorStatistics]) -> Frozen:
    """Choose every scale.

    Raises:
        CalibrationError: an edge saw no value; it is named.
        QuantizationError: a weight is not finite; its layer is named.
    """
    edges = {name: edge_dtype(name, annotation, stats) for name in annotation.edges}
    weights, operands = {}, {}
    for expr in graph.exprs():
        name = expr.outputs[0].name if expr.outputs else ""
        if name in annotation.weights:
            weights[name] = quantize_weight(name, expr.inputs[1].expr.value.numpy(), annotation.weights[name])
        for at in range(len(expr.inputs)):
            if (spec := annotation.operands.get((name, at))) is not None:
                dtype = _dtype(name, spec, annotation, stats)
                values = _integers(expr.inputs[at].expr.value.numpy(), dtype)
                operands[name, at] = QuantizedWeight(values, dtype)
    return Frozen(edges, weights, operands)


def edge_dtype(name: str, annotation: Annotation, stats: dict[str, TensorStatistics]) -> QuantizedDType:
    """Dtype of one edge; a shared one takes its source's. Raises CalibrationError if its observer saw nothing."""
    return _dtype(name, annotation.edges[name], annotation, stats)


def _dtype(name: str, spec: QSpec, annotation: Annotation, stats: dict[str, TensorStatistics]) -> QuantizedDType:
    seen = [name]
    while isinstance(spec, Shared):
        if spec.source in seen[1:] or spec is annotation.edges.get(spec.source):
            raise QuantizationError(f"edges {' -> '.join(seen)} share scales in a circle; one must have its own")
        seen.append(spec.source)
        spec = annotation.edges[spec.source]
    if isinstance(spec, Fixed):
        return spec.dtype
    assert isinstance(spec, Plain), spec
    if seen[-1] not in stats:
        raise CalibrationError(f"calibration: {seen[-1]!r} was not observed; calibrate with this annotation")
    return activation_dtype(stats[seen[-1]], spec.method, spec.scheme)


def quantize_weight(name: str, w: np.ndarray, spec: Weight) -> QuantizedWeight:
    """Integers and scales of a float weight. Raises QuantizationError if w holds NaN or infinity."""
    if not np.isfinite(w).all():
        raise QuantizationError(f"{name}: its weight holds NaN or infinity; expected finite weights")
    dtype = weight_dtype(w, spec.axis, spec.method)
    return QuantizedWeight(_integers(w, dtype), dtype)


def _integers(values: np.ndarray, dtype: QuantizedDType) -> np.ndarray:
    return integer.quantize(values, dtype.scale, dtype.zero_point, dtype.qmin, dtype.qmax, dtype.storage, dtype.axis)
