"""Convolutions and matrix products whose sums have one order, which docs/integer-arithmetic.md states.

A sum begins with 0; a product is rounded before it is added; a bias is added last.
"""

from __future__ import annotations

import functools

import numpy as np

from megengine.kernels.reference import conv
from megengine.kernels.reference.conv import Pairs, Sizes
from megengine.kernels.reference.order import in_turn

_PART = 1 << 16  # sums that are added to at once: they stay in the cache


def product(a: np.ndarray, b: np.ndarray, *, transpose_a: bool, transpose_b: bool) -> np.ndarray:
    """A matrix product [..., M, K] x [..., K, N], in the order of K."""
    a, b = (x.swapaxes(-1, -2) if turned else x for x, turned in ((a, transpose_a), (b, transpose_b)))
    return in_turn(a, b, _PART)


convolution = functools.partial(conv.convolution, in_turn=True)


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
    numbers = zip(size, kernel, stride, dilation, output_padding, strict=True)
    spans = [(m - 1) * s + d * (k - 1) + 1 + extra for m, k, s, d, extra in numbers]
    sums = np.zeros((n, len(weights), *spans), x.dtype)
    for tap, places in conv.places_of_taps(kernel, tuple(size), stride, dilation, last_first=True):
        part = sums[:, :, *places].copy()
        conv.add_channels(part, x, weights[:, :, *tap], groups)
        sums[:, :, *places] = part
    inside = (slice(before, span - after) for span, (before, after) in zip(spans, padding, strict=True))
    return conv.with_bias(sums[:, :, *inside], b)
