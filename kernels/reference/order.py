"""The order in which numbers are added, which rounding follows: NumPy and BLAS add in the order of the strides."""

from __future__ import annotations

import math

import numpy as np

from megengine.core.text import counted


def in_order(x: np.ndarray) -> np.ndarray:
    """The values C-contiguous: what is summed up of them is the same for every layout they come in."""
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)


_MOST_WORK = 1 << 16  # beyond, BLAS is faster by more than the call of it takes
_MOVE = 8  # products that take as long as one element of b takes to its place
_LONGEST = 512  # sums of products one after the other: BLAS adds several sums up, and rounds less


def too_much(leading: tuple[int, ...], rows: int, depth: int, cols: int) -> str | None:
    """Why products of [*leading, rows, depth] and [*leading, depth, cols] are left to BLAS; None for few of them."""
    work = math.prod(leading) * (rows + _MOVE) * depth * cols
    if work > _MOST_WORK:
        return f"{counted(work, 'product')} and moves"
    return f"sums of {counted(depth, 'product')}" if depth > _LONGEST else None


def in_turn(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The matrix product of few numbers: products are rounded, then added one after the other."""
    out = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), a.dtype)
    for k in range(a.shape[-1]):
        out += a[..., :, k, None] * b[..., None, k, :]
    return out
