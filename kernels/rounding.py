"""Rounding at the end of an integer layer, and its gradient, in one pass each, where NumPy takes several.

`steps` are sums of a layer in steps of its result, float32, channels last: [rows, channels]. Values are equal to those
of NumPy; sums of gradients are added in another order.
"""

from __future__ import annotations

import numpy as np

from megengine.kernels import _core, memory
from megengine.kernels.registry import forced


def round_sums(
    steps: np.ndarray,
    residual: np.ndarray | None,
    zero: int,
    ratio: float,
    bounds: tuple[int, int],
    offset: int,
    storage: np.dtype,
) -> tuple[np.ndarray, np.ndarray, tuple[float, float]]:
    """The steps with (residual - zero) * ratio added, their integers, and the smallest and largest of the steps.

    The integers are clamped to the bounds, then `offset` is added.
    """
    wide = storage.itemsize > 1 or (residual is not None and residual.itemsize > 1)
    if wide or "reference" in forced() or not steps.size:
        if residual is not None:
            steps = steps + (residual.astype(np.float32) - np.float32(zero)) * np.float32(ratio)
        q = np.rint(np.clip(steps, np.float32(bounds[0]), np.float32(bounds[1]))).astype(np.int32) + offset
        ends = float(steps.min(initial=np.inf)), float(steps.max(initial=-np.inf))
        return steps, q.astype(storage), ends
    q, ends = memory.empty(steps.shape, np.dtype(np.uint8)), np.empty(2, np.float32)
    total = None if residual is None else memory.empty(steps.shape, steps.dtype)
    signed = residual is not None and residual.dtype == np.int8
    other = q if residual is None else residual.view(np.uint8)
    to = ends if total is None else total  # without a residual nothing is written there
    _core.round_sums(steps, other, residual is not None, signed, zero, ratio, *bounds, offset, to, q, ends)
    return steps if total is None else total, q.view(storage), (float(ends[0]), float(ends[1]))


def round_sums_backward(
    ct: np.ndarray, steps: np.ndarray, bounds: tuple[int, int], ends: tuple[float, float], *, rounding: bool
) -> tuple[np.ndarray, np.ndarray, float]:
    """The gradient before rounding, its sum by channel, and the sum that is the gradient of the scale.

    It passes where steps lie in the bounds. Below and above, the scale's has the factors `ends`; between, what rounding
    moves a value by (with `rounding`).
    """
    lo, hi = map(np.float32, bounds)
    if "reference" in forced() or not steps.size:
        inside = (lo <= steps) & (steps <= hi)
        passed = np.where(inside, ct, np.float32(0))
        moved = np.where(inside, np.rint(steps) - steps if rounding else np.float32(0), np.float32(ends[0]))
        moved = np.where(steps > hi, np.float32(ends[1]), moved)
        return passed, passed.sum(0, dtype=np.float64).astype(np.float32), float((ct * moved).sum(dtype=np.float64))
    passed = memory.empty(steps.shape, steps.dtype)
    sums = np.empty(steps.shape[1], np.float32)
    total = _core.round_sums_backward(ct, steps, lo, hi, *ends, rounding, passed, sums)
    return passed, sums, total
