"""Weights of a resize of open sizes, as nodes that compute them from the sizes in the arithmetic of the reference."""

from typing import Any

import numpy as np

from megengine.core.sizes import is_open
from megengine.kernels.reference.integer import resize_bits, whole_weights
from megengine.kernels.reference.resize import CUBIC, taps

F64, I64 = np.dtype(np.float64), np.dtype(np.int64)
_SHIFTS = {"nearest": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


def matrix_of(at: Any, n: int, out: int, attrs: Any) -> Any:
    """The whole weights of n places for each of `out` places: [n, out] float64, a name where a size is open."""
    axes = len(attrs["size"])
    if is_open((n, out)):
        return _Open(at, at.w, n, out).matrix(attrs["mode"], attrs["corners"], axes)
    index, weight = taps(n, out, attrs["mode"], attrs["corners"])
    matrix = np.zeros((n, out))
    np.add.at(matrix, (index.T, np.arange(out)), whole_weights(weight, axes).T)
    return matrix


class _Open:
    """One axis, from a length to another one, of which one is open at least."""

    def __init__(self, at: Any, w: Any, n: int, out: int) -> None:
        self.at = at
        self.n, self.out = (at("Squeeze", w.size(size), np.zeros(1, I64)) for size in (n, out))
        self.last = at("Sub", self.n, np.int64(1))
        self.places = at("Range", np.int64(0), self.out, np.int64(1))

    def matrix(self, mode: str, corners: bool, axes: int) -> str:
        at = self.at
        first, fractions = self._nearest() if mode == "nearest" else self._source(mode, corners)
        shifts = np.array(_SHIFTS[mode], I64)[:, None]
        index = at("Min", at("Max", at("Add", first, shifts), np.int64(0)), self.last)  # [taps, out]
        whole = self._whole(self._weights(mode, fractions), resize_bits(axes), len(shifts))
        rows = at("Unsqueeze", at("Range", np.int64(0), self.n, np.int64(1)), np.array([1]))
        hit = at.cast(at("Equal", at("Unsqueeze", index, np.array([1])), rows), F64)  # [taps, n, out]
        return at("ReduceSum", at("Mul", hit, at("Unsqueeze", whole, np.array([1]))), np.array([0]), keepdims=0)

    def _nearest(self) -> tuple[str, str]:
        first = self.at("Div", self.at("Mul", self.places, self.n), self.out)
        return first, self.at("Mul", self.at.cast(self.places, F64), np.float64(0))

    def _source(self, mode: str, corners: bool) -> tuple[str, str]:
        """The first neighbour of each place, and how far behind it the place lies."""
        at, places = self.at, self.at.cast(self.places, F64)
        if corners:
            ends = at("Max", at("Sub", self.out, np.int64(1)), np.int64(1))
            source = at("Mul", places, at("Div", at.cast(self.last, F64), at.cast(ends, F64)))
        else:
            ratio = at("Div", at.cast(self.n, F64), at.cast(self.out, F64))
            source = at("Sub", at("Mul", at("Add", places, np.float64(0.5)), ratio), np.float64(0.5))
        source = at("Max", source, np.float64(0)) if mode == "linear" else source
        base = at("Floor", source)
        return at.cast(base, I64), at("Sub", source, base)

    def _weights(self, mode: str, t: str) -> str:
        """Weights of the neighbours: [taps, out]."""
        if mode == "nearest":
            rows = [self.at("Add", t, np.float64(1))]
        else:
            back = self._sub(1.0, t)
            rows = [back, t] if mode == "linear" else self._cubic(t, back)
        return self.at("Concat", *(self.at("Unsqueeze", row, np.array([0])) for row in rows), axis=0)

    def _cubic(self, t: str, back: str) -> list[str]:
        return [
            self._far(self.at("Add", t, np.float64(1))),
            self._near(t),
            self._near(back),
            self._far(self._sub(2.0, t)),
        ]

    def _sub(self, number: float, t: str) -> str:
        return self.at("Sub", np.float64(number), t)

    def _near(self, d: str) -> str:
        at, a = self.at, CUBIC
        inner = at("Sub", at("Mul", np.float64(a + 2), d), np.float64(a + 3))
        return at("Add", at("Mul", at("Mul", inner, d), d), np.float64(1))

    def _far(self, d: str) -> str:
        at, a = self.at, CUBIC
        inner = at("Add", at("Mul", at("Sub", at("Mul", np.float64(a), d), np.float64(5 * a)), d), np.float64(8 * a))
        return at("Sub", at("Mul", inner, d), np.float64(4 * a))

    def _whole(self, weights: str, bits: int, count: int) -> str:
        """As `whole_weights`: the first largest weight takes what rounding leaves over."""
        at, one = self.at, np.float64(1 << bits)
        whole, largest = at("Round", at("Mul", weights, one)), at("ArgMax", weights, axis=0, keepdims=1)
        taken = at("Equal", largest, np.arange(count)[:, None])
        others = at("Where", taken, np.float64(0), whole)
        rest = at("Sub", one, at("ReduceSum", others, np.array([0]), keepdims=1))
        return at("Where", taken, rest, others)
