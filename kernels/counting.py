"""Counting values for statistics: extrema by channel and histograms, natively for float32 that fills its memory."""

import math

import numpy as np

from megengine.kernels import _core
from megengine.kernels.registry import forced

_F32 = np.dtype(np.float32)
_EXPONENTS = range(-120, 121)  # of factors that float32 holds


def extrema(x: np.ndarray, axis: int | None, sums: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray] | None:
    """Smallest and largest values of every index along an axis (None: of all, one entry); None if one is not finite.

    x has at least one element; `sums` gets the float64 sums of every index, unless it is empty. Zeros are positive.
    """
    sums = np.empty(0) if sums is None else sums
    if _native(x):
        dense, order = _dense(x)
        inner = dense.size if axis is None else math.prod(dense.shape[order.index(axis) + 1 :])
        lo, hi = (np.empty(1 if axis is None else x.shape[axis], np.float32) for _ in range(2))
        return (lo + 0, hi + 0) if _core.extrema(dense.reshape(-1), inner, lo, hi, sums) else None
    axes = tuple(i for i in range(x.ndim) if i != axis)
    lo, hi = np.atleast_1d(x.min(axis=axes)), np.atleast_1d(x.max(axis=axes))
    if sums.size:
        sums[...] = x.sum(axis=axes, dtype=np.float64)
    return (lo + 0, hi + 0) if np.isfinite(lo).all() and np.isfinite(hi).all() else None


def count(x: np.ndarray, exponent: int, first: int, counts: np.ndarray) -> None:
    """Add the values of x to int64 counts of bins of width 2**exponent, of which bin `first` is counted first.

    All values lie in the bins, whose numbers are below 2**24.
    """
    if _native(x) and exponent in _EXPONENTS:
        _core.count(_dense(x)[0].reshape(-1), math.ldexp(1.0, -exponent), first, counts)
        return
    index = np.floor(np.ldexp(x.reshape(-1), -exponent)).astype(np.intp) - first
    counts += np.bincount(index, minlength=len(counts))


def _native(x: np.ndarray) -> bool:
    return x.dtype == _F32 and "reference" not in forced()


def _dense(x: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """The array with its axes in the order of its memory (copied if there are gaps), and this order."""
    order = sorted(range(x.ndim), key=lambda axis: -x.strides[axis])
    return np.ascontiguousarray(x.transpose(order)), order
