"""Ways of choosing a range from statistics: one small function each, found by name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import OptionError, nearest
from megengine.dispatch.refusal import fields_named
from megengine.quantization.ranges.scales import WEIGHT, Scheme, quantized_dtype, round_trip, scale_and_zero, scheme
from megengine.quantization.ranges.statistics import Histogram, TensorStatistics

Range = tuple[float, float]


@fields_named
@dataclass(frozen=True, slots=True)
class RangeMethod:
    """Which range to take, by name, with its parameters.

    Args:
        name: "minmax", "ema", "percentile", "mse" or "kl".
        percentile: part of the values kept, in percent, for "percentile".

    Example:
        >>> RangeMethod("percentile", percentile=99.99)
        RangeMethod(name='percentile', percentile=99.99)
    """

    name: str = "minmax"
    percentile: float = 99.999

    def __post_init__(self) -> None:
        if self.name not in METHODS:
            raise OptionError(
                f"observer: unknown method {self.name!r}; expected one of {', '.join(METHODS)}"
                f"{nearest(self.name, METHODS)}"
            )
        if not isinstance(self.percentile, Real) or not 50 < self.percentile <= 100:
            raise OptionError(f"observer: percentile is {self.percentile!r}; expected a value in (50, 100]")


def choose_range(stats: TensorStatistics, method: RangeMethod, how: Scheme) -> Range:
    """Range [lo, hi] of a tensor for integers of a scheme. Raises CalibrationError if the statistics saw no value."""
    stats.require_data()
    return METHODS[method.name](stats, method, how)


def _percentile(stats: TensorStatistics, method: RangeMethod, how: Scheme) -> Range:
    kept = method.percentile / 100
    if how.qmin == 0 and how.symmetric:
        return 0.0, min(stats.histogram.quantile(kept), stats.maximum)
    tail = (1 - kept) / 2
    lo = max(stats.histogram.quantile(tail), stats.minimum)
    return lo, min(stats.histogram.quantile(1 - tail), stats.maximum)


def _mse(stats: TensorStatistics, method: RangeMethod, how: Scheme) -> Range:
    """Range with the smallest mean squared error, by coordinate search over shrunk ends of [min, max]."""
    lo, hi = stats.minimum, stats.maximum
    best = error_of_range(stats.histogram, lo, hi, how)
    for factors in (np.linspace(1.0, 0.2, 41), np.linspace(1.06, 0.94, 13)):
        for end in ("both",) if how.symmetric else ("low", "high", "low", "high"):
            candidates = [(lo if end == "high" else lo * f, hi if end == "low" else hi * f) for f in factors]
            errors = errors_of_ranges(stats.histogram, candidates, how)
            at = int(np.argmin(errors))
            if errors[at] < best:
                best, (lo, hi) = errors[at], candidates[at]
    return max(lo, stats.minimum), min(hi, stats.maximum)


def error_of_range(h: Histogram, lo: float, hi: float, how: Scheme) -> float:
    """Mean squared error of the histogram's values when [lo, hi] is quantized."""
    return errors_of_ranges(h, [(lo, hi)], how)[0]


def errors_of_ranges(h: Histogram, ranges: Sequence[Range], how: Scheme) -> list[float]:
    """`error_of_range` of each of some ranges."""
    lows, highs = np.array(ranges, np.float64).T
    scales, zeros = scale_and_zero(lows, highs, how)
    x, counts, total = h.centers, h.counts.astype(np.float64), max(int(h.counts.sum()), 1)
    return [
        float(counts @ (round_trip(x, float(scale), int(zero), how) - x) ** 2) / total
        for scale, zero in zip(scales, zeros, strict=True)
    ]


def _kl(stats: TensorStatistics, method: RangeMethod, how: Scheme) -> Range:
    """Range of least Kullback-Leibler divergence between the values and their quantized histogram.

    The divergence hardly sees the rare large values that carry the power of a heavy tail, and collapses on peaked
    tensors. So only ranges are considered that leave no more squared error than the whole range does.
    """
    h = stats.histogram
    lo, hi = stats.minimum, stats.maximum
    if how.symmetric:
        hi = hi if how.qmin == 0 else max(-lo, hi)
        lo = 0.0 if how.qmin == 0 else -hi
    best, chosen, allowed = np.inf, (lo, hi), error_of_range(h, lo, hi, how)
    for factor in np.linspace(1.0, 0.1, 91):
        candidate = lo * factor, hi * factor
        if error_of_range(h, *candidate, how) > allowed:
            continue
        divergence = _divergence(h, *candidate, how.steps + 1)
        if divergence < best:
            best, chosen = divergence, candidate
    return chosen


def _divergence(h: Histogram, lo: float, hi: float, levels: int) -> float:
    inside = (h.centers >= lo) & (h.centers <= hi)
    p = h.counts[inside].astype(np.float64)
    if not p.sum():
        return np.inf
    bucket = np.minimum(((h.centers[inside] - lo) / max(hi - lo, 1e-300) * levels).astype(int), levels - 1)
    used = p > 0
    total = np.bincount(bucket, p, levels)
    filled = np.bincount(bucket, used, levels)
    q = np.where(used, (total / np.maximum(filled, 1))[bucket], 0.0)
    below, above = h.counts[h.centers < lo].sum(), h.counts[h.centers > hi].sum()
    p[0] += below
    p[-1] += above
    p, q = p / p.sum(), (q + 1e-9) / (q + 1e-9).sum()
    return float(np.sum(np.where(p > 0, p * np.log(np.maximum(p, 1e-300) / q), 0.0)))


METHODS: dict[str, Callable[[TensorStatistics, RangeMethod, Scheme], Range]] = {
    "minmax": lambda stats, method, how: (stats.minimum, stats.maximum),
    "ema": lambda stats, method, how: stats.samples.moving_average(),
    "percentile": _percentile,
    "mse": _mse,
    "kl": _kl,
}


def activation_dtype(stats: TensorStatistics, method: RangeMethod, name: str) -> QuantizedDType:
    """The dtype that a method gives a tensor, as a scheme by name. Raises CalibrationError if no value was seen."""
    how = scheme(name)
    return quantized_dtype(*choose_range(stats, method, how), how)


def dtype_of_values(values: Any, name: str) -> QuantizedDType:
    """The dtype of a scheme, by name, that holds all of these values."""
    stats = TensorStatistics("")
    stats.update(np.asarray(values, np.float32))
    return activation_dtype(stats, RangeMethod("minmax"), name)


def weight_dtype(w: np.ndarray, axis: int | None, method: str, how: Scheme = WEIGHT) -> QuantizedDType:
    """The dtype of a weight, from its own values; an all-zero channel takes the largest scale of the others."""
    reach = weight_reach(w, axis, method, how)
    if axis is not None and reach.max(initial=0.0) > 0:
        reach = np.where(reach > 0, reach, reach.max())
    return quantized_dtype(-reach, reach, how, axis=axis)


def weight_reach(w: np.ndarray, axis: int | None, method: str, how: Scheme) -> np.ndarray:
    """Largest magnitude to represent, per channel of `axis` (float64 vector) or per tensor (0-d).

    `method` is "minmax" or "mse" (search over shrunk ranges on the weights themselves), `how` a symmetric scheme.
    """
    rows = w.reshape(1, -1) if axis is None else np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)
    reach = np.abs(rows).max(axis=1, initial=0.0).astype(np.float64)
    if method == "mse":
        real = rows.astype(np.float32)
        best, best_error = reach, np.full(reach.shape, np.inf)
        for factor in np.linspace(1.0, 0.62 if how.steps > 15 else 0.4, 20 if how.steps > 15 else 31):
            scale, _ = scale_and_zero(-reach * factor, reach * factor, how)
            back = np.clip(np.rint(real / scale[:, None]), how.qmin, how.qmax) * scale[:, None]
            error = np.square(back - real, out=back).sum(axis=1, dtype=np.float64)
            best = np.where(error < best_error, reach * factor, best)
            best_error = np.minimum(error, best_error)
        reach = best
    elif method != "minmax":
        raise OptionError(f"weights: unknown observer {method!r}; expected minmax or mse{nearest(method, METHODS)}")
    return reach if axis is not None else reach[0]
