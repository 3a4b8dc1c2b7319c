"""Sampling at any points of values with any number of spatial axes, as ONNX's GridSample defines it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from megengine.core.errors import ShapeError
from megengine.core.sizes import is_open
from megengine.dispatch import apply
from megengine.kernels.reference.resize import cubic_weights
from megengine.ops.common import INT32, cast, choice, counting, size_tensor
from megengine.tensor import Tensor

INTERPOLATIONS = ("nearest", "linear", "cubic")
BORDERS = ("zeros", "border", "reflection")

Length = float | Tensor  # of an axis: an open one is a scalar


def _reflected(at: Tensor, low: float, high: Length) -> Tensor:
    """Points brought into [low, high] by reflection at both ends."""
    span = high - low
    if isinstance(span, Tensor):
        span = apply("maximum", span, Tensor(1e-6, dtype=span.dtype, device=span.device))
    elif span <= 0:
        return at * 0 + low
    distance = at - low
    distance = distance - apply("floor", distance * (0.5 / span)) * (2 * span)
    return apply("minimum", distance, 2 * span - distance) + low


def _clipped(at: Tensor, high: Length) -> Tensor:
    if isinstance(high, Tensor):
        return apply("minimum", apply("clip", at, lo=0.0, hi=float("inf")), high)
    return apply("clip", at, lo=0.0, hi=float(high))


def _inside(at: Tensor, length: Length, border: str, corners: bool) -> Tensor:
    if border == "border":
        return _clipped(at, length - 1)
    if border == "reflection":
        return _reflected(at, *((0.0, length - 1.0) if corners else (-0.5, length - 0.5)))
    return at


def _taps(at: Tensor, interpolation: str) -> list[tuple[Tensor, Tensor | None]]:
    """Positions of neighbours along an axis, and their weights."""
    if interpolation == "nearest":
        # halves go to the even integer
        low = apply("floor", at)
        fraction, odd = at - low, low - apply("floor", low * 0.5) * 2
        up = apply("where", fraction == 0.5, odd, cast(fraction > 0.5, at.dtype))
        return [(low + up, None)]
    base = apply("floor", at)
    t = at - base
    if interpolation == "linear":
        return [(base, 1 - t), (base + 1, t)]
    return list(zip((base - 1, base, base + 1, base + 2), cubic_weights(t), strict=True))


def grid_sample(x: Tensor, grid: Tensor, *, interpolation: str, border: str, corners: bool) -> Tensor:
    """X [N,C,*size] at grid [N,*out,axes] (last spatial axis first; -1 and 1 are the ends) -> [N,C,*out].

    The ends are the centres of the outer elements with `corners`, else their outer sides.
    """
    op, axes = "grid_sample", x.ndim - 2
    choice(op, "interpolation", interpolation, INTERPOLATIONS)
    choice(op, "border", border, BORDERS)
    if axes < 1 or grid.ndim != axes + 2 or grid.shape[-1] != axes or grid.shape[0] != x.shape[0]:
        raise ShapeError(f"{op}: x has shape {x.shape}, grid {grid.shape}; expected [N,C,*size] and [N,*out,axes]")
    n, c, *size = x.shape
    out = grid.shape[1:-1]
    points = apply("reshape", grid, shape=(n, math.prod(out), axes))
    columns = apply("split", points, sections=(1,) * axes, axis=2)[::-1]
    lengths = [size_tensor(length, points.dtype, x.device) if is_open(length) else length for length in size]
    taps = []
    for column, length in zip(columns, lengths, strict=True):
        at = apply("reshape", column, shape=points.shape[:2])
        at = (at + 1) * ((length - 1) / 2) if corners else ((at + 1) * length - 1) * 0.5
        at = at if interpolation == "cubic" else _inside(at, length, border, corners)
        taps.append(_taps(at, interpolation))
    flat = apply("transpose", apply("reshape", x, shape=(n, c, math.prod(size))), perm=(0, 2, 1))
    batch = apply("reshape", counting(n, np.int32, x.device), shape=(n, 1))
    terms = [_term(flat, batch, lengths, taken, border, corners) for taken in itertools.product(*taps)]
    total = reduce(lambda a, b: a + b, terms)
    return apply("reshape", apply("transpose", total, perm=(0, 2, 1)), shape=(n, c, *out))


def _term(flat: Tensor, batch: Tensor, lengths: Sequence[Length], taken: Any, border: str, corners: bool) -> Tensor:
    """What one neighbour of each point adds, [N, points, C]."""
    place, weight, within = None, None, None
    for (position, share), length in zip(taken, lengths, strict=True):
        if border == "zeros":
            here = apply("logical_and", position >= 0, position <= length - 1)
            within = here if within is None else apply("logical_and", within, here)
        position = _clipped(_inside(position, length, border, corners), length - 1)
        index = cast(position + 0.25, INT32)  # reflection may leave a whole number a little short
        whole = cast(length, INT32) if isinstance(length, Tensor) else length
        place = index if place is None else place * whole + index
        if share is not None:
            weight = share if weight is None else weight * share
    assert place is not None
    values = apply("index", flat, batch, place, pattern=("i", "i", (None, None, None)))
    if weight is not None:
        values = values * apply("reshape", weight, shape=(*weight.shape, 1))
    if within is not None:
        inside = apply("reshape", within, shape=(*within.shape, 1))
        values = apply("where", inside, values, Tensor(0.0, dtype=values.dtype, device=values.device))
    return values
