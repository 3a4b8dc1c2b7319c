"""freeze: statistics and weights become frozen quantized dtypes and integers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from megengine.core.dtype import QuantizedDType, quantized
from megengine.core.errors import CalibrationError, QuantizationError
from megengine.kernels.reference import integer
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.spec import (
    Addend,
    Argument,
    Fixed,
    JoinedScores,
    Known,
    Mask,
    Masked,
    Plain,
    QSpec,
    Shared,
    Weight,
)
from megengine.quantization.ranges import TensorStatistics, activation_dtype, quantized_dtype, scheme, weight_dtype
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

_LARGEST_BIAS = 2**30  # steps: the sum of a layer and its bias has to fit int32
_NONE: Mapping[str, QuantizedDType] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """Integers of a weight with their dtype; in groups [all groups, weights of each], with a scale for each group."""

    values: np.ndarray
    dtype: QuantizedDType


@dataclass(frozen=True, slots=True)
class Frozen:
    """Dtypes of the integer edges by node name, weights by name of the layer's output node, other constants by name of
    their op's output node and place; biases, which stay real, too. `bounded` are the edges whose range ends on purpose.
    Ops in `floating`, by the name of their result, and with `real_results` the results of the network, take values that
    are made in float as they are, not as layers read them.
    """

    edges: dict[str, QuantizedDType]
    weights: dict[str, QuantizedWeight]
    operands: dict[tuple[str, int], QuantizedWeight]
    biases: dict[tuple[str, int], np.ndarray]
    bounded: frozenset[str] = frozenset()
    floating: frozenset[str] = frozenset()
    real_results: bool = False


def freeze(
    graph: InternalGraph,
    annotation: Annotation,
    seen: Mapping[str, TensorStatistics | QuantizedDType],
    weight_dtypes: Mapping[str, QuantizedDType] = _NONE,
) -> Frozen:
    """Choose every scale: from the statistics of an edge, or the dtype that it has already.

    `weight_dtypes` are those that weights have already, by layer.

    Raises:
        CalibrationError: an edge saw no value; it is named.
        QuantizationError: a weight is not finite; its layer is named.
    """
    edges = {name: edge_dtype(name, annotation, seen) for name in annotation.edges}
    weights, operands = {}, {}
    ops = {e.outputs[0].name: e for e in graph.exprs() if isinstance(e, Apply)}
    for name, expr in ops.items():
        if name in annotation.weights:
            spec, dtype = annotation.weights[name], weight_dtypes.get(name)
            w = in_groups(expr.inputs[1].expr.value.numpy(), spec.group, turned(expr))
            given = None if dtype is None else QuantizedWeight(_integers(w, dtype), dtype)
            weights[name] = given or quantize_weight(name, w, spec)
        for at in range(len(expr.inputs)):
            if (spec := annotation.operands.get((name, at))) is not None:
                real = expr.inputs[at].expr.value.numpy()
                if isinstance(spec, Weight):
                    operands[name, at] = quantize_weight(name, in_groups(real, spec.group, is_turned=False), spec)
                    continue
                if isinstance(spec, Mask):
                    dtype = _mask_dtype(real, spec, seen)
                else:
                    dtype = _dtype(name, spec, annotation, seen)
                operands[name, at] = QuantizedWeight(_integers(real, dtype), dtype)
    biases = {}
    for name, (op, at) in annotation.biases.items():
        if at < len(ops[op].inputs):
            bias, data = ops[op].inputs[at].expr.value.numpy(), edges.get(ops[name].inputs[0].name)
            weights[name] = with_room(bias, ops[name], data, weights[name])
            biases[op, at] = in_steps(bias, ops[name], data, weights[name])
    bounded = frozenset(n for n, spec in annotation.edges.items() if isinstance(spec, Plain) and spec.bounded)
    floating = frozenset(annotation.floating)
    return Frozen(edges, weights, operands, biases, bounded, floating, annotation.real_results)


def with_room(bias: np.ndarray, layer: Apply, data: QuantizedDType | None, weight: QuantizedWeight) -> QuantizedWeight:
    """The weight, with larger steps in channels whose bias would be more steps of the sum than an int32 holds.

    Such a channel gives its bias, whatever the data: it loses less than 2**-22 of it for each weight.
    """
    if data is None or not _has_steps(bias, layer, data, weight) or weight.dtype.axis is None:
        return weight
    scale = np.asarray(weight.dtype.scale, np.float32)
    least = np.abs(bias.astype(np.float64)) / (_LARGEST_BIAS * float(data.only_scale)) * (1 + 2**-20)
    if scale.shape != bias.shape or np.all(least <= scale):
        return weight
    dtype = quantized(weight.dtype.name, np.maximum(scale, least.astype(np.float32)), 0, weight.dtype.axis)
    return QuantizedWeight(_integers(layer.inputs[1].expr.value.numpy(), dtype), dtype)


def _has_steps(bias: np.ndarray, layer: Apply, data: QuantizedDType | None, weight: QuantizedWeight) -> bool:
    return data is not None and bias.ndim == 1 and weight.values.shape == layer.inputs[1].shape


def in_steps(bias: np.ndarray, layer: Apply, data: QuantizedDType | None, weight: QuantizedWeight) -> np.ndarray:
    """The bias of a layer as a whole number of steps of its sum, so that a runtime may add it as an int32.

    It stays as it is if it is larger than an int32 or not one number a channel, and beside a weight in groups or float
    data.
    """
    if data is None or not _has_steps(bias, layer, data, weight):
        return bias
    scale = np.float32(data.only_scale) * np.asarray(weight.dtype.scale, np.float32)
    exact = scale.astype(np.float64)
    if scale.size not in (1, bias.size) or not np.all(np.abs(bias) < _LARGEST_BIAS * exact):
        return bias
    return np.rint(bias / exact).astype(np.float32) * scale


def edge_dtype(
    name: str, annotation: Annotation, seen: Mapping[str, TensorStatistics | QuantizedDType]
) -> QuantizedDType:
    """Dtype of one edge; a shared one takes its source's. Raises CalibrationError if its observer saw nothing."""
    return _dtype(name, annotation.edges[name], annotation, seen)


def source_of(name: str, spec: QSpec, annotation: Annotation) -> str:
    """The edge whose scale an edge takes: itself, or the end of what it shares with."""
    passed = [name]
    while isinstance(spec, Shared):
        if spec.source in passed[1:] or spec is annotation.edges.get(spec.source):
            raise QuantizationError(f"edges {' -> '.join(passed)} share scales in a circle; one must have its own")
        passed.append(spec.source)
        spec = annotation.edges[spec.source]
    return passed[-1]


def _dtype(
    name: str, spec: QSpec, annotation: Annotation, seen: Mapping[str, TensorStatistics | QuantizedDType]
) -> QuantizedDType:
    source = source_of(name, spec, annotation)
    if isinstance(spec, Shared):
        spec = annotation.edges[source]
    if isinstance(spec, Fixed):
        known = seen.get(source)
        if isinstance(spec, Known) and isinstance(known, TensorStatistics) and _is_narrow(spec.dtype, known):
            return activation_dtype(known, spec.method, spec.scheme)
        return spec.dtype
    assert isinstance(spec, Plain), spec
    if source not in seen:
        raise CalibrationError(f"calibration: {source!r} was not observed; calibrate with this annotation")
    known = seen[source]
    if isinstance(known, QuantizedDType):
        return known
    if isinstance(spec, Masked) and (readings := list(_readings(spec, seen))):
        least = max(_least_score(ends, spec.room) for ends in readings) + spec.largest
        if known.minimum < least < known.maximum:
            return quantized_dtype(least, known.maximum, scheme(spec.scheme))
    if isinstance(spec, Addend):
        least = min(_least_addend(n, other, annotation, seen) for n, other in spec.sums)
        if known.minimum < least < known.maximum:
            return quantized_dtype(least, known.maximum, scheme(spec.scheme))
    if isinstance(spec, JoinedScores) and annotation.edges.keys() >= set(spec.parts):
        ends = [_ends(edge_dtype(n, annotation, seen))[0] for n in spec.parts]
        if known.minimum < (least := min(*ends, spec.least)) < known.maximum:
            return quantized_dtype(least, known.maximum, scheme(spec.scheme))
    dtype = activation_dtype(known, spec.method, spec.scheme)
    if isinstance(spec, Argument):
        # 0, which every range has, may be far from what was seen: 1 / sqrt(x + 1e-8) changes most there
        lo, hi = np.clip(_ends(dtype), known.minimum, known.maximum).tolist()
        return quantized_dtype(*where_it_changes(spec, lo, hi), scheme(spec.scheme)) if lo < hi else dtype
    return dtype


def _is_narrow(dtype: QuantizedDType, seen: TensorStatistics) -> bool:
    """Whether values were seen that all lie within half of the range of a dtype."""
    return seen.count > 0 and 2 * max(map(abs, _ends(seen))) < max(map(abs, _ends(dtype)))


def _readings(
    spec: Masked, seen: Mapping[str, TensorStatistics | QuantizedDType]
) -> Iterator[list[tuple[bool, tuple[float, float]]]]:
    """The terms behind a mask with their ends, as they are added last, and taken apart; each bounds the scores."""
    for terms in (spec.scores, spec.apart):
        if terms and seen.keys() >= {n for n in terms if isinstance(n, str)}:
            yield [(n in spec.computed, _ends(seen[n])) if isinstance(n, str) else (False, n) for n in terms]


def _least_score(terms: list[tuple[bool, tuple[float, float]]], room: float) -> float:
    """The least sum of terms (whether it is surely a score, its ends) that counts behind a softmax.

    What spans more than the scores and the room is a mask, of which the largest value counts.
    """
    least, spanned = -room, 0.0
    for sure, (lo, hi) in sorted(terms, key=lambda term: (not term[0], term[1][1] - term[1][0])):
        is_mask = not sure and spanned > 0 and hi - lo > spanned + room
        least += hi if is_mask else lo
        spanned += 0 if is_mask else hi - lo
    return least


def _least_addend(
    name: str, other: str | float, annotation: Annotation, seen: Mapping[str, TensorStatistics | QuantizedDType]
) -> float:
    """What gives the least value of a sum with the largest value of its other operand."""
    if name not in annotation.edges or (isinstance(other, str) and other not in seen):
        return -np.inf
    most = _ends(seen[other])[1] if isinstance(other, str) else other
    return _ends(edge_dtype(name, annotation, seen))[0] - most


def _ends(known: TensorStatistics | QuantizedDType) -> tuple[float, float]:
    """The smallest and the largest real value that was seen, or that a dtype has."""
    if isinstance(known, TensorStatistics):
        return known.minimum, known.maximum
    scale, zero = known.only_scale, known.zero_point
    return (known.qmin - zero) * scale, (known.qmax - zero) * scale


_POINTS = 4096
_FEWEST, _MOST_VALUES = 512, 2**20  # points where a function differs from place to place, and all its values
# of what the results span, a sixteenth of a step of 8 bits: all that lies beyond errs to the same side
_UNSEEN = 1 / 4096


def where_it_changes(argument: Argument, lo: float, hi: float) -> tuple[float, float]:
    """The part of [lo, hi] beyond which a function keeps its value at the end, but for what 8 bits cannot show.

    Where each place has a function, none may change beyond it; their results have one scale, so what 8 bits show is a
    part of what all of them span. A step of 8 bits more at each end: the zero point, which is rounded, moves the ends
    by half a step, and all that lies beyond them would get what the function gives there.
    """
    points = min(_POINTS, max(_FEWEST, _MOST_VALUES // argument.places))
    x = np.linspace(lo, hi, points, dtype=np.float32)
    with np.errstate(all="ignore"):
        y = argument.function(np.repeat(x[:, None], argument.places, 1)).astype(np.float64)
    if not np.isfinite(y).all():
        return lo, hi
    room = (y.max() - y.min()) * _UNSEEN
    first = _last_flat(y, room)
    last = len(y) - 1 - _last_flat(y[::-1], room)
    step = float(x[last] - x[first]) / 255
    return (max(float(x[first]) - step, lo), min(float(x[last]) + step, hi)) if first < last else (lo, hi)


def _last_flat(y: np.ndarray, room: float) -> int:
    """The last index such that all values [points, places] before it are as near to those there."""
    near = np.maximum(np.maximum.accumulate(y) - y, y - np.minimum.accumulate(y)) <= room
    return int(np.flatnonzero(near.all(1))[-1])


def _mask_dtype(real: np.ndarray, spec: Mask, seen: Mapping[str, TensorStatistics | QuantizedDType]) -> QuantizedDType:
    lo, hi = float(real.min(initial=0.0)), float(real.max(initial=0.0))
    if spec.scores in seen:
        least, most = _ends(seen[spec.scores])
        lo = max(lo, least - most - spec.room)
    return quantized_dtype(lo, hi, scheme(spec.scheme))


def quantize_weight(name: str, w: np.ndarray, spec: Weight) -> QuantizedWeight:
    """Integers and scales of a float weight. Raises QuantizationError if w holds NaN or infinity."""
    if not np.isfinite(w).all():
        raise QuantizationError(f"{name}: its weight holds NaN or infinity; expected finite weights")
    dtype = weight_dtype(w, 0 if spec.group else spec.axis, spec.method, scheme(spec.scheme))
    return QuantizedWeight(_integers(w, dtype), dtype)


def real_weight(layer: Apply, weight: QuantizedWeight) -> np.ndarray:
    """What the integers of a layer's weight stand for, in the shape of the weight."""
    real = integer.dequantize(weight.values, weight.dtype.scale, weight.dtype.zero_point, weight.dtype.axis)
    shape = layer.inputs[1].spec.shape
    if real.shape == shape:
        return real
    return real.reshape(shape[::-1]).T if turned(layer) else real.reshape(shape)


def turned(layer: Apply) -> bool:
    """True for a weight whose last axis counts output channels."""
    return layer.record.rows and not layer.attrs.get("transpose_b")


def in_groups(w: np.ndarray, group: int, is_turned: bool) -> np.ndarray:
    """A weight as [all groups, group], output channels first; as it is without groups."""
    return (w.T if is_turned else w).reshape(-1, group) if group else w


def _integers(values: np.ndarray, dtype: QuantizedDType) -> np.ndarray:
    return integer.quantize(values, dtype.scale, dtype.zero_point, dtype.qmin, dtype.qmax, dtype.storage, dtype.axis)
