"""Functions of single pictures [H,W,C], as `megengine.data.transform.vision.functional` has them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import ArgumentError, ShapeError
from megengine.data.transform.base import of_channels, picture
from megengine.data.transform.resizing import LINEAR, resized
from megengine.dispatch.refusal import explains

_GRAY = np.array([3735, 19235, 9798])  # 32768 times the shares of blue, green and red, as OpenCV rounds them
_PARTS = 32768


def wrap_keepdims(func: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Decorator of a function of a picture, whose result gets the channel axis back where it was dropped.

    The function raises ShapeError for a picture without one.
    """

    @functools.wraps(func)
    def wrapper(image: Any, *args: Any, **kwargs: Any) -> np.ndarray:
        if np.ndim(image) != 3:
            raise ShapeError(f"{func.__name__}: a picture has shape {np.shape(image)}; expected [H,W,C]")
        result = func(image, *args, **kwargs)
        return result[:, :, None] if np.ndim(result) == 2 else result

    return wrapper


@explains
@wrap_keepdims
def to_gray(image: np.ndarray) -> np.ndarray:
    """[H,W,3], in the order blue, green, red -> [H,W,1] with OpenCV's numbers."""
    image = of_channels("to_gray", picture("to_gray", image), 3)
    if image.dtype.kind in "bui":
        return ((image @ _GRAY + _PARTS // 2) // _PARTS).astype(image.dtype)
    return image @ np.array([0.114, 0.587, 0.299], image.dtype)


@explains
@wrap_keepdims
def to_bgr(image: np.ndarray) -> np.ndarray:
    """[H,W,1] -> [H,W,3], three times the same."""
    return np.repeat(of_channels("to_bgr", picture("to_bgr", image), 1), 3, axis=-1)


@explains
@wrap_keepdims
def pad(input: np.ndarray, size: Any, value: Any) -> np.ndarray:
    """A border around a picture: one width, (bottom, right), or (top, bottom, left, right).

    A single `value` is that of the first channel, and the others get 0, as in MegEngine.
    """
    image = picture("pad", input)
    widths = (size,) * 4 if isinstance(size, int) else tuple(size)
    top, bottom, left, right = (0, widths[0], 0, widths[1]) if len(widths) == 2 else widths
    h, w, channels = image.shape
    colour = np.atleast_1d(value)[:channels]
    out = np.zeros((top + h + bottom, left + w + right, channels), image.dtype)
    out[..., : len(colour)] = colour
    out[top : top + h, left : left + w] = image
    return out


@explains
@wrap_keepdims
def flip(image: np.ndarray, flipCode: int) -> np.ndarray:
    """Top and bottom exchanged for 0, left and right for a number above, both for one below."""
    axes = (0,) if flipCode == 0 else (1,) if flipCode > 0 else (0, 1)
    return np.ascontiguousarray(np.flip(picture("flip", image), axes))


@explains
@wrap_keepdims
def resize(input: np.ndarray, size: Sequence[int], interpolation: int = LINEAR) -> np.ndarray:
    """A picture of another (height, width), with OpenCV's numbers; `interpolation` is 0 (nearest) or 1 (linear)."""
    if not isinstance(size, (tuple, list)) or len(size) != 2:
        raise ArgumentError(f"resize: size is {size!r}; expected (height, width)")
    return resized("resize", picture("resize", input), (int(size[0]), int(size[1])), interpolation)


__all__ = ["flip", "pad", "resize", "to_bgr", "to_gray", "wrap_keepdims"]
