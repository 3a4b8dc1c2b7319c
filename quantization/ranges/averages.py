"""Averages of what samples gave, the same for any batches, order of the data, and number of workers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

KEPT = 512
PARTS, _BITS = 9, 32  # of an exact sum: 288 bits hold float32 numbers and 2**34 of the largest
_LOWEST = -149  # exponent of the least float32
_ROOM = 128  # numbers of up to 55 bits that fit into int64 together
_WAITING = 32  # vectors that are added together


@dataclass(slots=True)
class SampleExtrema:
    """Smallest and largest values of samples, of which the last `KEPT` are kept, in an order that the values give.

    The order is that of a hash of both numbers. A moving average with a momentum of 0.9 forgets more than 500 samples:
    0.9**512 is below 2**-53.

    Example:
        >>> one = SampleExtrema()
        >>> one.update(-1.0, 2.0)
        >>> one.moving_average()
        (-1.0, 2.0)
    """

    kept: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.float32))
    _new: list[tuple[float, float]] = field(default_factory=list)

    def update(self, lo: float, hi: float) -> None:
        """Take a sample's smallest and largest value."""
        self._new.append((lo, hi))
        if len(self._new) >= KEPT:
            self.last()

    def extend(self, ends: np.ndarray) -> None:
        """Take the ends of samples, float32 [n, 2]."""
        self._new += map(tuple, ends.tolist())
        if len(self._new) >= KEPT:
            self.last()

    def merge(self, other: SampleExtrema) -> None:
        """Take the samples of another."""
        self._new += [(float(lo), float(hi)) for lo, hi in other.last()]
        self.last()

    def last(self) -> np.ndarray:
        """Float32 [n, 2] of the samples that are kept, in their order."""
        if self._new:
            pairs = np.concatenate([self.kept, np.array(self._new, np.float32)])
            self.kept = pairs[np.argsort(_mixed(pairs), kind="stable")][-KEPT:]
            self._new.clear()
        return self.kept

    def moving_average(self, momentum: float = 0.9) -> tuple[float, float]:
        """Exponential moving averages; divided by the sum of the weights, so that no sample counts as the first."""
        pairs = self.last().astype(np.float64)
        weights = momentum ** np.arange(len(pairs) - 1, -1, -1.0)
        lo, hi = (weights[:, None] * pairs).sum(axis=0) / weights.sum()
        return float(lo), float(hi)


def _mixed(pairs: np.ndarray) -> np.ndarray:
    """A number of 64 bits for each pair of float32, another one for every other pair (the mixing of SplitMix64)."""
    x = np.ascontiguousarray(pairs, "<f4").view("<u8").reshape(-1).astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


@dataclass(slots=True)
class ExactMean:
    """Mean of float32 vectors of one length, whose sums are integers of 288 bits: nothing is rounded on the way.

    `parts` is int64 [9, length], the lowest first, each of 32 bits but the last.

    Example:
        >>> mean = ExactMean()
        >>> for x in (1e30, 1.0, -1e30, 3.0):
        ...     mean.update(np.array([x], np.float32))
        >>> mean.value
        array([1.])
    """

    count: int = 0
    parts: np.ndarray | None = None
    _added: int = 0
    _new: list[np.ndarray] = field(default_factory=list)

    def update(self, x: np.ndarray) -> None:
        """Take vectors of samples, float32: one, or rows of them."""
        rows = np.array(x.reshape(-1, x.shape[-1]))
        self._new.append(rows)
        self.count += len(rows)
        if sum(map(len, self._new)) >= _WAITING:
            self._add_new()

    def _add_new(self) -> None:
        rows = np.concatenate(self._new)
        self._new.clear()
        for first in range(0, len(rows), _ROOM):
            self._add(rows[first : first + _ROOM])

    def _add(self, rows: np.ndarray) -> None:
        count, length = rows.shape
        if self._added + count > _ROOM:
            self._carried()
        _, exponent = np.frexp(rows)
        place = np.maximum(exponent - 24, _LOWEST) - _LOWEST
        whole = np.ldexp(rows.astype(np.float64), -_LOWEST - place).astype(np.int64) << (place % _BITS)
        if self.parts is None:
            self.parts = np.zeros((PARTS, length), np.int64)
        np.add.at(self.parts, (place // _BITS, np.broadcast_to(np.arange(length), rows.shape)), whole)
        self._added += count

    def merge(self, other: ExactMean) -> None:
        """Take the vectors of another."""
        theirs = other.settled()
        if theirs is not None:
            self.join(theirs, other.count)

    def join(self, parts: np.ndarray, count: int) -> None:
        """Take the parts of so many vectors, below 2**62 each."""
        mine = self.settled() if self._new or self._added else self.parts  # with all carries behind a `join`, too
        self.parts = parts.copy() if mine is None else mine + parts
        self.count += count
        self._carried()

    def settled(self) -> np.ndarray | None:
        """The parts with all vectors and all carries; None before the first vector."""
        if self._new:
            self._add_new()
        self._carried()
        return self.parts

    def _carried(self) -> None:
        if self.parts is not None:
            _carry(self.parts)
        self._added = 0

    @property
    def value(self) -> np.ndarray:
        """Float64 vector."""
        parts = self.settled()
        assert parts is not None, "a mean of nothing"
        negative = parts[-1] < 0
        magnitude = np.where(negative, -parts, parts)
        _carry(magnitude)
        scaled = [np.ldexp(part.astype(np.float64), _LOWEST + _BITS * i) for i, part in enumerate(magnitude)]
        return np.where(negative, -1.0, 1.0) * reduce(np.add, reversed(scaled)) / self.count


def _carry(parts: np.ndarray) -> None:
    for low, high in itertools.pairwise(parts):
        over = low >> _BITS
        low -= over << _BITS
        high += over
