"""Equal bins between the smallest and the largest value seen, as MegEngine's HistogramObserver keeps them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_STEP = 1e-5  # share of the values by which an end moves in


@dataclass(frozen=True, slots=True)
class Bins:
    """Counts of equal parts of [lo, hi]."""

    lo: float
    hi: float
    counts: np.ndarray

    @property
    def width(self) -> float:
        """Width of a bin."""
        return (self.hi - self.lo) / len(self.counts)

    def joined(self, values: np.ndarray, upsample_rate: int) -> Bins:
        """The bins with more values. Values outside widen all bins by a whole number of their `upsample_rate`-th parts,
        and what a bin held is spread evenly over its parts.
        """
        number = len(self.counts)
        lo, hi = min(self.lo, float(values.min())), max(self.hi, float(values.max()))
        if (lo, hi) == (self.lo, self.hi):
            return Bins(lo, hi, self.counts + counted(values, number, lo, hi))
        extent, wanted = (float(np.float32(end) - np.float32(start)) for start, end in ((self.lo, self.hi), (lo, hi)))
        part = extent / number / upsample_rate  # from float32 differences: a hair decides about a whole part
        if part == 0:  # only one value was seen: it goes where it lies
            first = counted(np.full(1, self.lo), number, lo, hi) * self.counts.sum()
            return Bins(lo, hi, first + counted(values, number, lo, hi))
        rate = np.ceil(wanted / (number * part))
        more = rate * (number * part) - wanted
        lo, hi = lo - more / 2, hi + more / 2
        start = np.round((self.lo - lo) / part)
        below = np.r_[0.0, np.cumsum(self.counts)]  # an end of a bin -> the values below it
        ends = np.interp(np.arange(1, number + 1) * rate - start, np.arange(number + 1) * upsample_rate, below)
        return Bins(lo, hi, np.diff(ends, prepend=0.0) + counted(values, number, lo, hi))

    def error(self, first: int, last: int, levels: int) -> float:
        """Sum of squared errors if so many levels cover the bins from the first to the last."""
        step = self.width * (last - first + 1) / levels
        starts = (np.arange(len(self.counts)) - first) * self.width
        ends = starts + self.width
        low, high = (np.clip(np.floor(edges / step), 0, levels - 1) for edges in (starts, ends))
        cubes = (step / 2) ** 3 - (starts - (low + 0.5) * step) ** 3  # from the start to the end of its level
        cubes += 2 * (high - low - 1) * (step / 2) ** 3  # of the whole levels between
        cubes += (ends - (high + 0.5) * step) ** 3 + (step / 2) ** 3
        return float((cubes * self.counts).sum())

    def best_range(self, levels: int) -> tuple[float, float]:
        """The ends of the range that loses least: the farther end moves in while the error falls.

        Source of the search: Jia et al., the histogram observer of Caffe2 and PyTorch (torch.ao.quantization).
        """
        if self.width == 0:
            return self.lo, self.hi
        below, total = np.cumsum(self.counts), float(self.counts.sum())
        first, last = 0, len(self.counts) - 1
        low, high, least = 0.0, 1.0, np.inf
        while low < high:
            left = max(first, min(int(np.searchsorted(below, (low + _STEP) * total)), last))
            right = min(last, max(int(np.searchsorted(below, (high - _STEP) * total, side="right")) - 1, first))
            if left - first > last - right:
                new, low = (left, last), low + _STEP
            else:
                new, high = (first, right), high - _STEP
            if new == (first, last):
                continue
            error = self.error(*new, levels)
            if error > least:
                break
            least, (first, last) = error, new
        return self.lo + self.width * first, self.lo + self.width * (last + 1)


def counted(values: np.ndarray, number: int, lo: float, hi: float) -> np.ndarray:
    """How many values lie in each of equal parts of [lo, hi]; all in the middle one if these are equal."""
    return np.histogram(values, number, (lo, hi))[0].astype(np.float64)
