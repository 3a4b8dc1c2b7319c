"""Conversions between colour spaces, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, ShapeError
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import apply, public
from megengine.ops.common import FLOAT32, as_tensor, cast, choice
from megengine.ops.matmul import product
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
_LAYOUTS = ("NV12", "NV21", "YU12", "YV12")
_SUBSAMPLED = (
    *(f"{kind}YUV2{order}_{layout}" for kind in ("", "BT601_") for order in ("RGB", "BGR") for layout in _LAYOUTS),
    *(f"YUV2GRAY_{layout}" for layout in _LAYOUTS),
)
_ALIASES = {"YCRCB2RGB": "YUV2RGB_NV21", "YCRCB2BGR": "YUV2BGR_NV21"}


def _nearest(y: Tensor) -> Tensor:
    """The nearest integers, halves upwards."""
    return apply("floor", y + 0.5)


def _eight_bit(y: Tensor) -> Tensor:
    return cast(apply("clip", _nearest(y), lo=0.0, hi=255.0), np.dtype(np.uint8))


def _factors(values: Any, x: Tensor) -> np.ndarray:
    """Weights of channels; for 8-bit pictures rounded to 14 bits behind the point, so that sums are exact."""
    weights = np.array(values, np.float64)
    return (np.rint(weights * 2**14) / 2**14 if x.dtype == np.uint8 else weights).astype(np.float32)


def _chroma(x: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """U and V of every pixel, less 128, from the last third of the rows: pairs (NV) or one plane after the other."""
    n, rows, w, _ = x.shape
    h = rows * 2
    if layout.startswith("NV"):
        pairs = apply("transpose", apply("reshape", x, shape=(n, h // 2, w // 2, 2)), perm=(3, 0, 1, 2))
    else:
        pairs = apply("transpose", apply("reshape", x, shape=(n, 2, h // 2, w // 2)), perm=(1, 0, 2, 3))
    pairs = apply("reshape", pairs, shape=(2, n, h // 2, 1, w // 2, 1))
    pairs = apply("broadcast_to", pairs, shape=(2, n, h // 2, 2, w // 2, 2))
    first, second = (apply("reshape", pairs[k] - 128, shape=(n, h, w)) for k in (0, 1))
    return (first, second) if layout in ("NV12", "YU12") else (second, first)


def _subsampled(x: Tensor, mode: str) -> Tensor:
    """[N, 3/2 H, W, 1]: H rows of Y, then chroma for 2x2 pixels. In fixed point as in MegEngine: 8 bits, BT601 6."""
    n, rows, w, c = x.shape
    if c != 1 or rows % 3 or w % 2 or x.dtype != np.uint8:
        raise ShapeError(f"cvt_color: {mode} got {x.spec}; expected uint8 [N, 3/2 H, W, 1] with H and W even")
    h = rows * 2 // 3
    if "2GRAY" in mode:
        return x[:, :h]
    whole = cast(x, FLOAT32)
    light, (u, v) = whole[:, :h, :, 0], _chroma(whole[:, h:], mode[-4:])
    if mode.startswith("BT601"):
        light = apply("floor", light * (257 * 18997 / 65536)) - 1160
        planes = [apply("floor", (light + part) / 64) for part in (v * 102, u * -25 - v * 52, u * 128)]
    else:
        red, green, blue = (apply("floor", part / 256) for part in (v * 359, u * 88 + v * 183, u * 454))
        planes = [light + red, light - green, light + blue]
    planes = planes if "2RGB" in mode else planes[::-1]
    return _eight_bit(apply("concat", *[apply("reshape", p, shape=(n, h, w, 1)) for p in planes], axis=3))


@public(home="megengine.functional.vision")
def cvt_color(inp: TensorLike, mode: str = "") -> Tensor:
    """Inp [N,H,W,C] (uint8, or float32 in 0..1) in another colour space, named like RGB2GRAY.

    YUV2RGB_NV12 and similar modes (BT601_, 2BGR, 2GRAY; NV12, NV21, YU12, YV12) take uint8 [N, 3/2 H, W, 1] with
    chroma for 2x2 pixels. As in MegEngine, RGB2YUV and YUV2RGB weight channel 0 as blue, and YCrCb2RGB, YCrCb2BGR
    stand for YUV2RGB_NV21, YUV2BGR_NV21. Raises OptionError for an unknown mode, with the nearest name.
    """
    mode, x = mode.upper(), as_tensor(inp)
    mode = _ALIASES.get(mode, mode)
    choice("cvt_color", "mode", mode, (*_MATRICES, "RGB2YUV", *_SUBSAMPLED))
    if x.ndim != 4:
        raise ShapeError(f"cvt_color: inp has shape {x.shape}; expected [N,H,W,C]")
    if x.dtype not in (np.uint8, np.float32):
        raise DTypeError(f"cvt_color: inp is {x.dtype}; expected uint8 or float32")
    if mode in _SUBSAMPLED:
        return _subsampled(x, mode)
    matrix = _MATRICES.get(mode, _FROM_YUV)
    if x.shape[3] != len(matrix):
        raise ShapeError(f"cvt_color: {mode} got {counted(x.shape[3], 'channel')}; expected {len(matrix)}")
    middle, y = 128.0 if x.dtype == np.uint8 else 0.5, cast(x, FLOAT32)
    if mode == "RGB2YUV":
        light = product(y, Tensor(_factors(_GRAY[::-1], x), device=y.device))
        light = _nearest(light) if middle > 1 else light  # Y of 8-bit pictures is rounded first
        parts = zip((y[..., 0:1] - light, y[..., 2:3] - light), map(float, _factors((0.492, 0.877), x)), strict=True)
        y = apply("concat", light, *(part * factor + middle for part, factor in parts), axis=3)
    else:
        if mode == "YUV2RGB":
            y = y - Tensor(np.array([0, middle, middle], np.float32), device=x.device)
        y = product(y, Tensor(_factors(matrix, x), device=x.device))
    return _eight_bit(y) if x.dtype == np.uint8 else y
