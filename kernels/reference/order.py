"""The order of additions, on which rounding depends: NumPy and BLAS add in the order of the strides."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from megengine.core.text import counted


def in_order(x: np.ndarray) -> np.ndarray:
    """The values C-contiguous: sums of them are the same for every layout of the input."""
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


_MOST_WORK = 1 << 16  # for more, BLAS gains more than its call costs
_MOVE = 8  # products in the time of moving one element of b
_LONGEST = 512  # terms of one running sum; BLAS adds partial sums, and rounds less


def too_much(leading: tuple[int, ...], rows: int, depth: int, cols: int) -> str | None:
    """Why products of [*leading, rows, depth] and [*leading, depth, cols] are left to BLAS; None for few of them."""
    work = math.prod(leading) * (rows + _MOVE) * depth * cols
    if work > _MOST_WORK:
        return f"{counted(work, 'product')} and moves"
    return f"sums of {counted(depth, 'product')}" if depth > _LONGEST else None


def add_in_turn(sums: np.ndarray, factors: Iterable[tuple[np.ndarray, np.ndarray]]) -> None:
    """Add products to sums of their shape: each is rounded, then added, one after the other."""
    now = np.empty_like(sums)
    for a, b in factors:
        sums += np.multiply(a, b, out=now)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Sums a * b + c of float32 arrays, rounded once.

    The product is exact in float64. A sum there that is not exact gets an odd last bit, so that rounding it to float32
    rounds the exact one (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    with np.errstate(invalid="ignore", over="ignore"):
        product, c = np.multiply(a, b, dtype=np.float64), c.astype(np.float64)
        y = np.asarray(product + c)
        part = y - product
        error = (product - (y - part)) + (c - part)  # not a number beside infinity
        bits = y.view(np.int64)
        even = ((error > 0) | (error < 0)) & (bits & 1 == 0)
        bits += np.where(even, np.where((error > 0) == (y > 0), 1, -1), 0)
        return y.astype(np.float32)


def in_turn(a: np.ndarray, b: np.ndarray, most: int | None = None) -> np.ndarray:
    """A matrix product [..., M, K] x [..., K, N] in the order of K, of about `most` results at once if stated."""
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.zeros((*leading, a.shape[-2], b.shape[-1]), a.dtype)
    a = np.broadcast_to(a, (*leading, *a.shape[-2:]))
    step = max(1, a.shape[-2] if most is None else most // max(out[..., :1, :].size, 1))
    for first in range(0, a.shape[-2], step):
        rows = slice(first, first + step)
        add_in_turn(out[..., rows, :], ((a[..., rows, k, None], b[..., None, k, :]) for k in range(a.shape[-1])))
    return out


def sum_of_windows(windows: np.ndarray, axes: int = 2) -> np.ndarray:
    """Sums over the last `axes` axes, added one after the other in the order of places; integers in 64 bits."""
    wide = {"b": np.dtype(np.int64), "i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
    out = np.zeros(windows.shape[:-axes], wide.get(windows.dtype.kind, windows.dtype))
    for place in np.ndindex(*windows.shape[-axes:]):
        out += windows[(..., *place)]
    return out
