"""Neighbours and weights of pictures in other sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

CUBIC = -0.75  # the parameter of the cubic kernel (Keys 1981), as OpenCV has it


def cubic_weights(t: Any) -> list[Any]:
    """Weights of the neighbours -1, 0, 1, 2 of a point at fraction t after neighbour 0 (Keys 1981)."""
    a = CUBIC

    def near(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def taps(n: int, out: int, mode: str, corners: bool) -> tuple[np.ndarray, np.ndarray]:
    """For each of `out` positions the indices in an axis of length n and their weights, [out, taps] each."""
    at = np.arange(out, dtype=np.float64)
    if mode == "nearest":
        return np.minimum(np.arange(out) * n // out, n - 1)[:, None], np.ones((out, 1))
    outermost = (n - 1) / (out - 1) if out > 1 else 0.0
    source = at * outermost if corners else (at + 0.5) * (n / out) - 0.5
    source = np.maximum(source, 0) if mode == "linear" else source
    base = np.floor(source).astype(np.int64)
    t = source - base
    shifts, weights = ([0, 1], [1 - t, t]) if mode == "linear" else ([-1, 0, 1, 2], cubic_weights(t))
    index = np.clip(base[:, None] + np.array(shifts), 0, n - 1)
    return index, np.stack(weights, -1)
