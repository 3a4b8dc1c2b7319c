"""Streaming, mergeable statistics of one tensor: bounded memory, the same result in any order of batches.

One pass over the calibration data feeds every way of choosing a range (`methods.py`), so
the data is read once and the model can be quantized again with other settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from megengine.core.errors import CalibrationError
from megengine.core.text import counted
from megengine.kernels import counting
from megengine.quantization.ranges.averages import ExactMean, SampleExtrema

Count = Callable[[int, int, np.ndarray], None]
BINS = 4096
MANTISSA_BITS = 24


@dataclass(slots=True)
class Histogram:
    """Counts of values in bins of width `2**exponent`, aligned on multiples of the width.

    The range grows by powers of two: doubling the width merges neighbours 2i and 2i + 1 exactly, and the
    final width depends on the smallest and the largest value only. So every order of updates and every
    split into merged parts ends in identical counts.

    Example:
        >>> import numpy as np
        >>> h = Histogram(bins=8)
        >>> h.update(np.array([0.5, 3.0, 7.9], np.float32))
        >>> h.exponent, h.first, h.counts.tolist()
        (0, 0, [1, 0, 0, 1, 0, 0, 0, 1])
    """

    bins: int = BINS
    exponent: int = 0
    first: int = 0
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def width(self) -> float:
        return math.ldexp(1.0, self.exponent)

    @property
    def edges(self) -> np.ndarray:
        """Float64 borders of the bins, one more than counts."""
        return np.arange(self.first, self.first + len(self.counts) + 1) * self.width

    @property
    def centers(self) -> np.ndarray:
        """Float64 middles of the bins."""
        return (np.arange(self.first, self.first + len(self.counts)) + 0.5) * self.width

    def update(self, x: np.ndarray) -> None:
        """Count the finite values of x (any shape, float)."""
        if x.size:
            self.add(float(x.min()), float(x.max()), partial(counting.count, x))

    def add(self, lo: float, hi: float, count: Count) -> None:
        """Count values between lo and hi: `count(exponent, first, counts)` adds them to bins of width 2**exponent."""
        # the smallest power of two that covers [lo, hi] with all bins and keeps bin numbers exact in float32
        magnitude = max(abs(lo), abs(hi))
        exponent = math.frexp(magnitude)[1] - MANTISSA_BITS if magnitude else -MANTISSA_BITS
        # bins are never narrower than those that are counted already
        exponent = max(exponent, -149 + MANTISSA_BITS, *([self.exponent] if len(self.counts) else []))
        while _bin(hi, exponent) - _bin(lo, exponent) >= self.bins:
            exponent += 1
        self._cover(*self._join(exponent, _bin(lo, exponent), _bin(hi, exponent)))
        count(self.exponent, self.first, self.counts)

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram of the same number of bins."""
        if not len(other.counts):
            return
        last = other.first + len(other.counts) - 1
        exponent, low, high = self._join(other.exponent, other.first, last)
        self._cover(exponent, low, high)
        self._place(other.counts, other.first, exponent - other.exponent)

    def _join(self, exponent: int, low: int, high: int) -> tuple[int, int, int]:
        """Exponent and first and last bin that hold these bins together with the own ones."""
        if len(self.counts):
            target = max(exponent, self.exponent)
            mine, theirs = target - self.exponent, target - exponent
            low = min(self.first >> mine, low >> theirs)
            high = max((self.first + len(self.counts) - 1) >> mine, high >> theirs)
            exponent = target
        while high - low >= self.bins:
            exponent, low, high = exponent + 1, low >> 1, high >> 1
        return exponent, low, high

    def _cover(self, exponent: int, low: int, high: int) -> None:
        if exponent == self.exponent and low == self.first and high - low + 1 == len(self.counts):
            return
        counts, first, shift = self.counts, self.first, exponent - self.exponent
        self.counts, self.first, self.exponent = np.zeros(high - low + 1, np.int64), low, exponent
        if len(counts):
            self._place(counts, first, shift)

    def _place(self, counts: np.ndarray, first: int, shift: int) -> None:
        index = ((np.arange(len(counts)) + first) >> shift) - self.first
        self.counts += np.bincount(index, counts, len(self.counts)).astype(np.int64)

    def quantile(self, q: float) -> float:
        """Value below which the fraction q of all values lies, linear inside a bin."""
        total = np.concatenate([[0], np.cumsum(self.counts)])
        return float(np.interp(q * total[-1], total, self.edges))


def _bin(x: float, exponent: int) -> int:
    return math.floor(math.ldexp(x, -exponent))


@dataclass(slots=True)
class TensorStatistics:
    """Statistics of one tensor for every way to choose its range; about 40 kB for any amount of data.

    They do not depend on the order of samples, nor on how samples are divided into parts that are merged.
    `name` is the node in errors, `channel_axis` the axis of per-channel minima and maxima (None: per tensor only);
    with `averaged`, the mean of every channel is kept too, each sample with the same weight.

    Example:
        >>> import numpy as np
        >>> s = TensorStatistics("conv1")
        >>> s.update(np.ones((1, 3, 2, 2), np.float32))
        >>> s.minimum, s.maximum, s.count
        (1.0, 1.0, 12)
    """

    name: str
    channel_axis: int | None = 1
    bins: int = BINS
    averaged: bool = False
    count: int = 0
    minimum: float = math.inf
    maximum: float = -math.inf
    channel_minimum: np.ndarray | None = None
    channel_maximum: np.ndarray | None = None
    histogram: Histogram = field(default_factory=Histogram)
    samples: SampleExtrema = field(default_factory=SampleExtrema)
    means: ExactMean = field(default_factory=ExactMean)

    def __post_init__(self) -> None:
        self.histogram.bins = self.bins

    def update(self, x: np.ndarray, samples: int = 1) -> None:
        """Take one sample, or several along axis 0: float array of any shape.

        Raises CalibrationError if x holds NaN or infinity.
        """
        if not x.size:
            return
        if samples > 1 and x.shape[:1] == (samples,):
            for i in range(samples):
                self.update(x[i : i + 1])
            return
        axis = self.axis_of(x.ndim)
        sums = np.zeros(x.shape[axis] if self.averaged and axis is not None else 0)
        if (by_channel := counting.extrema(x, axis, sums)) is None:
            raise self.refusal(x)
        lo, hi = by_channel
        ends = np.array([[lo.min(), hi.max()]])
        self.add(x.size, ends, None if axis is None else by_channel)
        self.histogram.add(float(ends[0, 0]), float(ends[0, 1]), partial(counting.count, x))
        if sums.size:
            self.means.update((sums / (x.size // sums.size)).astype(np.float32)[None])

    def axis_of(self, ndim: int) -> int | None:
        """The axis of channels of values with so many axes; None where they have none."""
        return self.channel_axis if self.channel_axis is not None and ndim > self.channel_axis else None

    def refusal(self, x: np.ndarray) -> CalibrationError:
        """The error of values of which some are not finite."""
        bad = int(np.size(x) - np.isfinite(x).sum())
        kind = "NaN" if np.isnan(x).any() else "infinity"
        return CalibrationError(
            f"calibration: {bad} of {counted(x.size, 'value')} of {self.name!r} are {kind}; expected finite "
            "values. Check the calibration data and the float model's weights"
        )

    def add(self, size: int, ends: np.ndarray, by_channel: tuple[np.ndarray, np.ndarray] | None) -> None:
        """Take the extrema of samples of `size` values in all, float32: `ends` [samples, 2], and those of channels.

        All are finite. The histogram and the means are for the caller to add to.
        """
        if by_channel is not None:
            self._join_channels(*by_channel)
        self.count += size
        self.samples.extend(ends)
        smallest, largest = float(ends[:, 0].min()), float(ends[:, 1].max())
        self.minimum, self.maximum = min(self.minimum, smallest), max(self.maximum, largest)

    def _join_channels(self, lo: np.ndarray, hi: np.ndarray) -> None:
        if self.channel_minimum is None or self.channel_maximum is None:
            self.channel_minimum, self.channel_maximum = lo, hi
        elif self.channel_minimum.shape == lo.shape:
            self.channel_minimum = np.minimum(self.channel_minimum, lo)
            self.channel_maximum = np.maximum(self.channel_maximum, hi)
        else:
            raise CalibrationError(
                f"calibration: {self.name!r} has {counted(lo.size, 'channel')} in one batch and "
                f"{self.channel_minimum.size} in another; expected the same number in all"
            )

    def merge(self, other: TensorStatistics) -> None:
        """Take what another worker saw."""
        if not other.count:
            return
        if other.channel_minimum is not None and other.channel_maximum is not None:
            self._join_channels(other.channel_minimum, other.channel_maximum)
        self.count += other.count
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        self.samples.merge(other.samples)
        self.histogram.merge(other.histogram)
        self.means.merge(other.means)

    def require_data(self) -> None:
        """Raises CalibrationError if no value reached this tensor."""
        if not self.count:
            raise CalibrationError(
                f"calibration: no value reached {self.name!r}, so it has no range; "
                "give at least one calibration input that runs this node"
            )
