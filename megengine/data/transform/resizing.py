"""Pictures of another size, with OpenCV's numbers for pictures of bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.errors import UnsupportedError

NEAREST, LINEAR = 0, 1
_ONE = 2048  # weights of bytes are whole parts of it


def resized(name: str, image: np.ndarray, size: tuple[int, int], interpolation: int) -> np.ndarray:
    """A picture [H,W,...] of another (height, width), by the nearest or by the four nearest points.

    Bytes are weighted by whole 2048-th parts, and sums are cut to 12 bits between the directions, as OpenCV does.
    """
    if interpolation not in (NEAREST, LINEAR):
        raise UnsupportedError(f"{name}: interpolation is {interpolation!r}; expected 0 (nearest) or 1 (linear)")
    if image.shape[:2] == tuple(size) or image.size == 0:
        return image
    if interpolation == NEAREST:
        rows, columns = (_nearest(n, have) for n, have in zip(size, image.shape, strict=False))
        return np.ascontiguousarray(image[rows[:, None], columns])
    flat = image.reshape(*image.shape[:2], -1)
    linear = _linear_bytes if image.dtype == np.uint8 else _linear
    return linear(flat, *size).astype(image.dtype).reshape(*size, *image.shape[2:])


def _nearest(number: int, have: int) -> np.ndarray:
    return np.minimum((np.arange(number) * (1 / (number / have))).astype(np.intp), have - 1)  # rounded as in OpenCV


def _places(number: int, have: int) -> tuple[np.ndarray, np.ndarray]:
    """The point before each new point (-1 before the first), and the share of the one behind it."""
    place = ((np.arange(number) + 0.5) * (have / number) - 0.5).astype(np.float32)
    before = np.floor(place)
    return before.astype(np.intp), place - before


def _inside(before: np.ndarray, share: np.ndarray, have: int) -> tuple[np.ndarray, np.ndarray]:
    """Places along a row: those outside are the end itself."""
    share = np.where((before < 0) | (before >= have - 1), np.float32(0), share)
    return before.clip(0, have - 1), share


def _linear_bytes(image: np.ndarray, height: int, width: int) -> np.ndarray:
    left, x = _inside(*_places(width, image.shape[1]), image.shape[1])
    above, y = _places(height, image.shape[0])
    right, last = np.minimum(left + 1, image.shape[1] - 1), image.shape[0] - 1
    first, second = (_parts(1 - x)[None, :, None], _parts(x)[None, :, None])
    values = image.astype(np.int32)
    rows = (values[:, left] * first + values[:, right] * second) >> 4
    upper, lower = (_parts(share)[:, None, None] for share in (1 - y, y))
    sums = (rows[above.clip(0, last)] * upper >> 16) + (rows[(above + 1).clip(0, last)] * lower >> 16)
    return ((sums + 2) >> 2).clip(0, 255)


def _parts(share: np.ndarray) -> np.ndarray:
    return np.rint(share * np.float32(_ONE)).astype(np.int32)


def _linear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    kind: Any = np.float64 if image.dtype.itemsize > 4 else np.float32
    (left, x), (above, y) = (
        _inside(*_places(n, have), have) for n, have in ((width, image.shape[1]), (height, image.shape[0]))
    )
    right, below = np.minimum(left + 1, image.shape[1] - 1), np.minimum(above + 1, image.shape[0] - 1)
    values, x, y = image.astype(kind), x.astype(kind)[None, :, None], y.astype(kind)[:, None, None]
    rows = values[:, left] * (1 - x) + values[:, right] * x
    made = rows[above] * (1 - y) + rows[below] * y
    return made if image.dtype.kind == "f" else np.rint(made)
