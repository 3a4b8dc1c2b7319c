"""Convolutions and matrix products whose sums have one order, which docs/integer-arithmetic.md states.

A sum begins with 0; a product is rounded before it is added; a bias is added last.
"""

from __future__ import annotations

import itertools

import numpy as np

from megengine.kernels.reference.conv import Pairs, Sizes, windows

_PART = 1 << 16  # sums that are added to at once: they stay in the cache


def product(a: np.ndarray, b: np.ndarray, *, transpose_a: bool, transpose_b: bool) -> np.ndarray:
    """A matrix product [..., M, K] x [..., K, N], in the order of K."""
    a, b = a.swapaxes(-1, -2) if transpose_a else a, b.swapaxes(-1, -2) if transpose_b else b
    leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.zeros((*leading, a.shape[-2], b.shape[-1]), a.dtype)
    a = np.broadcast_to(a, (*leading, *a.shape[-2:]))
    step = max(1, _PART // max(out[..., :1, :].size, 1))
    for first in range(0, a.shape[-2], step):
        rows = slice(first, first + step)
        part = out[..., rows, :]
        now = np.empty_like(part)
        for k in range(a.shape[-1]):
            part += np.multiply(a[..., rows, k, None], b[..., None, k, :], out=now)
    return out


def _add_products(sums: np.ndarray, x: np.ndarray, w: np.ndarray, groups: int) -> None:
    """Sums [N,O,*size] += channels of x [N,C,*size] times w [O,C/groups], one channel of a group after the other."""
    (n, o, *size), each = sums.shape, w.shape[1]
    of_group = sums.reshape(n, groups, o // groups, *size)
    parts, weights = x.reshape(n, groups, each, *size), w.reshape(groups, o // groups, each, *(1,) * len(size))
    now = np.empty_like(of_group)
    for c in range(each):
        of_group += np.multiply(parts[:, :, c : c + 1], weights[:, :, c], out=now)


def _with_bias(sums: np.ndarray, b: np.ndarray | None) -> np.ndarray:
    return sums if b is None else sums + b.reshape(1, -1, *(1,) * (sums.ndim - 2))


def convolution(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    groups: int,
) -> np.ndarray:
    """X [N,C,*size], w [O,C/g,*kernel], b [O] -> [N,O,*out]: for each tap of the kernel, its channels."""
    kernel = w.shape[2:]
    win = windows(x, kernel, stride, padding, dilation)
    sums = np.zeros((x.shape[0], w.shape[0], *win.shape[2 : 2 + len(kernel)]), x.dtype)
    for tap in np.ndindex(*kernel):
        _add_products(sums, win[..., *tap], w[:, :, *tap], groups)
    return _with_bias(sums, b)


def transposed(
    x: np.ndarray,
    w: np.ndarray,
    b: np.ndarray | None = None,
    *,
    stride: Sizes,
    padding: Pairs,
    dilation: Sizes,
    groups: int,
    output_padding: Sizes,
) -> np.ndarray:
    """X [N,I,*size], w [I,O/g,*kernel], b [O]: the adjoint, in the order of the elements of x that a sum reads."""
    n, _, *size = x.shape
    each, kernel = w.shape[0] // groups, w.shape[2:]
    weights = w.reshape(groups, each, w.shape[1], *kernel).swapaxes(1, 2).reshape(-1, each, *kernel)
    numbers = [*zip(size, kernel, stride, dilation, padding, output_padding, strict=True)]
    spans = [(m - 1) * s + d * (k - 1) + 1 + extra for m, k, s, d, _, extra in numbers]
    sums = np.zeros((n, len(weights), *spans), x.dtype)
    for tap in itertools.product(*(reversed(range(k)) for k in kernel)):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        places = [slice(a, a + s * (m - 1) + 1, s) for a, s, m in zip(starts, stride, size, strict=True)]
        part = sums[:, :, *places].copy()
        _add_products(part, x, weights[:, :, *tap], groups)
        sums[:, :, *places] = part
    inside = (slice(p[0], span - p[1]) for span, (*_, p, _) in zip(spans, numbers, strict=True))
    return _with_bias(sums[:, :, *inside], b)
