"""Conversions between colour spaces, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, ShapeError
from megengine.dispatch import apply, public
from megengine.ops.common import FLOAT32, as_tensor, cast, choice
from megengine.tensor import Tensor

_GRAY = ((0.299,), (0.587,), (0.114,))
_SWAP = ((0, 0, 1), (0, 1, 0), (1, 0, 0))
_SAME = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
# ITU-R BT.601. NOTE: as in MegEngine, channel 0 of RGB2YUV and YUV2RGB is weighted as blue.
_FROM_YUV = ((1, 1, 1), (2.032, -0.395, 0), (0, -0.581, 1.14))


def _dropping_alpha(matrix: tuple) -> tuple:
    return (*matrix, (0,) * len(matrix[0]))


# mode -> matrix from input to output channels
_MATRICES: dict[str, tuple] = {
    "RGB2GRAY": _GRAY,
    "BGR2GRAY": _GRAY[::-1],
    "RGBA2GRAY": _dropping_alpha(_GRAY),
    "GRAY2RGB": ((1, 1, 1),),
    "GRAY2BGR": ((1, 1, 1),),
    "RGB2BGR": _SWAP,
    "BGR2RGB": _SWAP,
    "RGBA2RGB": _dropping_alpha(_SAME),
    "RGBA2BGR": _dropping_alpha(_SWAP),
    "YUV2RGB": _FROM_YUV,
}
_SUBSAMPLED = tuple(f"YUV2{order}_{layout}" for order in ("RGB", "BGR") for layout in ("NV12", "NV21"))


def _eight_bit(y: Tensor) -> Tensor:
    return cast(apply("clip", apply("round", y), lo=0.0, hi=255.0), np.dtype(np.uint8))


def _subsampled(x: Tensor, mode: str) -> Tensor:
    """[N, 3/2 H, W, 1]: H rows of Y, then H/2 rows of interleaved pairs, one for 2x2 pixels."""
    n, rows, w, c = x.shape
    if c != 1 or rows % 3 or w % 2 or x.dtype != np.uint8:
        raise ShapeError(f"cvt_color: {mode} got {x.spec}; expected uint8 [N, 3/2 H, W, 1] with H and W even")
    h, whole = rows * 2 // 3, cast(x, FLOAT32)
    light = whole[:, :h, :, 0]
    pairs = apply("reshape", whole[:, h:], shape=(n, h // 2, 1, w // 2, 1, 2))
    pairs = apply("reshape", apply("broadcast_to", pairs, shape=(n, h // 2, 2, w // 2, 2, 2)), shape=(n, h, w, 2)) - 128
    u, v = (pairs[..., 0], pairs[..., 1]) if mode.endswith("NV12") else (pairs[..., 1], pairs[..., 0])
    red = light + apply("floor", v * 1.402)
    green = light - apply("floor", u * 0.34414 + v * 0.71414)
    blue = light + apply("floor", u * 1.772)
    planes = (red, green, blue) if "2RGB" in mode else (blue, green, red)
    return _eight_bit(apply("concat", *[apply("reshape", p, shape=(n, h, w, 1)) for p in planes], axis=3))


def _to_yuv(x: Tensor, middle: float) -> Tensor:
    """Y, and weighted differences of the outer channels to it; of 8-bit pictures to the rounded Y."""
    gray = Tensor(np.array(_GRAY[::-1], np.float32), device=x.device)
    light = apply("matmul", x, gray, transpose_a=False, transpose_b=False)
    light = apply("round", light) if middle > 1 else light
    u, v = (x[..., 0:1] - light) * 0.492 + middle, (x[..., 2:3] - light) * 0.877 + middle
    return apply("concat", light, u, v, axis=3)


@public(home="megengine.functional.vision")
def cvt_color(inp: Any, mode: str = "") -> Tensor:
    """Inp [N,H,W,C] (uint8, or float32 in 0..1) in another colour space, named like RGB2GRAY.

    YUV2RGB_NV12 and its like take uint8 [N, 3/2 H, W, 1] with chroma for 2x2 pixels. As in MegEngine, RGB2YUV and
    YUV2RGB weight channel 0 as blue. Raises OptionError for an unknown mode, with the nearest name.
    """
    mode, x = mode.upper(), as_tensor(inp)
    choice("cvt_color", "mode", mode, (*_MATRICES, "RGB2YUV", *_SUBSAMPLED))
    if x.ndim != 4:
        raise ShapeError(f"cvt_color: inp has shape {x.shape}; expected [N,H,W,C]")
    if x.dtype not in (np.uint8, np.float32):
        raise DTypeError(f"cvt_color: inp is {x.dtype}; expected uint8 or float32")
    if mode in _SUBSAMPLED:
        return _subsampled(x, mode)
    matrix = _MATRICES.get(mode, _FROM_YUV)
    if x.shape[3] != len(matrix):
        raise ShapeError(f"cvt_color: {mode} got {x.shape[3]} channels; expected {len(matrix)}")
    middle, y = 128.0 if x.dtype == np.uint8 else 0.5, cast(x, FLOAT32)
    if mode == "RGB2YUV":
        y = _to_yuv(y, middle)
    else:
        if mode == "YUV2RGB":
            y = y - Tensor(np.array([0, middle, middle], np.float32), device=x.device)
        weights = Tensor(np.array(matrix, np.float32), device=x.device)
        y = apply("matmul", y, weights, transpose_a=False, transpose_b=False)
    return _eight_bit(y) if x.dtype == np.uint8 else y
