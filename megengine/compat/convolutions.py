"""Op classes of convolutions, windows and pooling."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.compat.opdef import OpDef, choice, integers, op_class, refused_op, word_of
from megengine.compat.shapes import STRATEGY
from megengine.core.errors import OptionError, ShapeError
from megengine.tensor import Tensor

FORMAT = choice(
    "Convolution.Format",
    "NCHW NHWC NHWCD4 NCHW4 NCHW8 NCHW32 NCHW88 NCHW44 NCHW44_DOT NCHW4_NCHW32 NCHW32_NCHW4 NCHW4_NCHW NHWC_NCHW "
    "NHWC_NCHW4_IC_SMALL NCHW_NCHW4_IC_SMALL CHWN4 NCHW64 NCHW4_NHWC",
)
_MODE = choice("Convolution.Mode", "CROSS_CORRELATION CONVOLUTION")
_SPARSE = choice("Convolution.Sparse", "DENSE GROUP")
_COMPUTE_MODE = choice("Convolution.ComputeMode", "DEFAULT FLOAT32")
_NONLINE_MODE = choice("ConvBias.NonlineMode", "IDENTITY RELU SIGMOID H_SWISH")
_AFTER = {"IDENTITY": lambda y: y, "RELU": F.relu, "SIGMOID": F.sigmoid, "H_SWISH": F.hswish}

_PAD, _WINDOW = {"pad_h": 0, "pad_w": 0}, {"window_h": 3, "window_w": 3}
_GEOMETRY = {**_PAD, "stride_h": 1, "stride_w": 1, "dilate_h": 1, "dilate_w": 1}
_OPTIONS = {"mode": _MODE, **_GEOMETRY, "sparse": _SPARSE, "format": FORMAT, "compute_mode": _COMPUTE_MODE}


def refuse_other_formats(op: OpDef, *known: str) -> str:
    """The order of the axes in lower case. Raises OptionError for one that is not known here."""
    word = word_of(getattr(op, "format"))  # noqa: B009
    if word not in known:
        raise OptionError(f"{op!r}: format is {word}; expected {' or '.join(known)}: layouts are chosen by plans here")
    return word


def _sizes(op: OpDef, names: str, axes: str = "hw") -> list[tuple[int, ...]]:
    """Options that have a number for each axis: `_sizes(op, "pad stride")` is `[(op.pad_h, op.pad_w), ...]`."""
    return [tuple(getattr(op, f"{name}_{axis}") for axis in axes) for name in names.split()]


def _windows(op: Any, axes: str = "hw") -> dict[str, Any]:
    """Stride, padding and dilation as functions take them. Raises OptionError for other formats and modes."""
    refuse_other_formats(op, "NCHW", "NCDHW")
    if op.mode != "CROSS_CORRELATION":
        raise OptionError(
            f"{op!r}: mode is CONVOLUTION, for which MegEngine 1 computes a cross-correlation too; "
            "write CROSS_CORRELATION, or turn the weights"
        )
    return dict(zip(("stride", "padding", "dilation"), _sizes(op, "stride pad dilate", axes), strict=True))


def _grouped(op: Any, weight: Tensor, axes: str = "hw") -> dict[str, Any]:
    """As `_windows`, with the number of groups: the first axis of a weight in groups."""
    return {**_windows(op, axes), "groups": weight.shape[0] if op.sparse == "GROUP" else 1}


@op_class(**_OPTIONS, strategy=STRATEGY)
def Convolution(op: Any, x: Tensor, weight: Tensor) -> Tensor:
    """A convolution of [N,C,H,W] without a bias; weights in groups have one more axis."""
    return F.conv2d(x, weight, None, **_grouped(op, weight))


@op_class(
    **{"nonlineMode": _NONLINE_MODE, "mode": _MODE, "sparse": _SPARSE, "format": FORMAT, **_GEOMETRY},
    **{"compute_mode": _COMPUTE_MODE, "strategy": STRATEGY, "dtype": None},
)
def ConvBias(op: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, z: Tensor | None = None) -> Tensor:
    """A convolution in float32, a bias, another summand, and a function of the sum, rounded to `dtype`."""
    y = F.conv2d(x.astype("float32"), weight.astype("float32"), None, **_grouped(op, weight))
    for summand in (bias, z):
        y = y if summand is None else y + summand.astype("float32")
    y = _AFTER[word_of(op.nonlineMode)](y)
    return y if op.dtype is None else y.astype(op.dtype)


@op_class(nonlineMode=_NONLINE_MODE, **_OPTIONS, strategy=STRATEGY, dtype=None)
def BatchConvBias(op: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None, z: Tensor | None = None) -> Tensor:
    """As ConvBias, with weights [N, ...]: every picture has its own."""
    one = ConvBias(**op.__getstate__())
    parts = [slice(k, k + 1) for k in range(x.shape[0])]
    return F.concat([one.run(x[k], weight[k.start], bias, None if z is None else z[k]) for k in parts])


@op_class(**_OPTIONS, strategy=STRATEGY, dtype=None)
def ConvolutionBackwardData(op: Any, weight: Tensor, y: Tensor, like: Tensor | None = None) -> Tensor:
    """The gradient of a convolution to its input: a transposed convolution. Weights come first.

    The result has the size of `like` (a shape or a tensor of that shape); without it the smallest that fits.
    """
    options = _grouped(op, weight)
    more: Any = 0
    if like is not None:
        lengths = integers("ConvolutionBackwardData", like) if like.ndim == 1 else list(like.shape)
        plain = F.conv_transpose2d(y, weight, None, **options)
        more = tuple(want - have for want, have in zip(lengths[-2:], plain.shape[-2:], strict=True))
    return F.conv_transpose2d(y, weight, None, output_padding=more, **options)


_OPTIONS_3D = {
    "mode": choice("Convolution3D.Mode", "CROSS_CORRELATION CONVOLUTION"),
    **dict.fromkeys(("pad_d", "pad_h", "pad_w"), 0),
    **dict.fromkeys(("stride_d", "stride_h", "stride_w", "dilate_d", "dilate_h", "dilate_w"), 1),
    "sparse": choice("Convolution3D.Sparse", "DENSE GROUP"),
    "data_type": choice("Convolution3D.DataType", "FLOAT FLOAT_IO16xC32"),
    "format": choice("Convolution3D.Format", "NCDHW NDHWC"),
    "strategy": STRATEGY,
}


@op_class(**_OPTIONS_3D)
def Convolution3D(op: Any, x: Tensor, weight: Tensor) -> Tensor:
    """A convolution of [N,C,D,H,W] without a bias; weights in groups have one more axis."""
    return F.conv3d(x, weight, None, **_grouped(op, weight, "dhw"))


@op_class(**_OPTIONS_3D)
def Convolution3DBackwardData(op: Any, weight: Tensor, y: Tensor) -> Tensor:
    """A transposed convolution of [N,C,D,H,W]: the smallest input that gives `y`. Weights come first."""
    return F.conv_transpose3d(y, weight, None, **_grouped(op, weight, "dhw"))


@op_class(**_OPTIONS)
def GroupLocal(op: Any, x: Tensor, weight: Tensor) -> Tensor:
    """A convolution whose weights differ from place to place: [groups, H, W, C / groups, kh, kw, out / groups]."""
    return F.local_conv2d(x, weight, None, **_windows(op))


@op_class(**_OPTIONS, strategy=STRATEGY)
def DeformableConv(op: Any, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
    """A convolution of [N,C,H,W] that reads at moved places, weighted by a mask."""
    return F.deformable_conv2d(x, weight, offset, mask, None, **_grouped(op, weight))


@op_class(**_OPTIONS)
def RegionRestrictedConvolution(op: Any, x: Tensor, weight: Tensor, rin: Tensor, rout: Tensor) -> Tensor:
    """A convolution of [N,C,H,W] in groups that only joins pixels of one region."""
    return F.nn.region_restricted_conv(x, weight, rin, rout, None, **_grouped(op, weight))


refused_op(
    "RegionRestrictedConvolutionBackwardData",
    "The gradient of a region restricted convolution to its input.",
    "the gradient to the input comes from GradManager.backward",
    **_OPTIONS,
)

_POOLING_MODE = choice("Pooling.Mode", "MAX AVERAGE AVERAGE_COUNT_EXCLUDE_PADDING")


@op_class(
    mode=_POOLING_MODE,
    **_PAD,
    **dict.fromkeys(("stride_h", "stride_w", "window_h", "window_w"), 2),
    **{"format": FORMAT, "strategy": STRATEGY},
)
def Pooling(op: Any, x: Tensor) -> Tensor:
    """Largest or mean values of windows of [N,C,H,W]; one of the modes of a mean counts padding."""
    refuse_other_formats(op, "NCHW")
    window = _sizes(op, "window stride pad")
    return F.max_pool2d(x, *window) if op.mode == "MAX" else F.avg_pool2d(x, *window, mode=word_of(op.mode).lower())


@op_class(mode=_POOLING_MODE, format=FORMAT, shape=())
def AdaptivePooling(op: Any, x: Tensor, shape: Tensor | None = None) -> Tensor:
    """Pooling of [N,C,H,W] to a size, which is a tensor or an option."""
    refuse_other_formats(op, "NCHW")
    size = integers("AdaptivePooling", shape) if shape is not None else list(op.shape)
    size = size * 2 if len(size) == 1 else size
    return (F.adaptive_max_pool2d if op.mode == "MAX" else F.adaptive_avg_pool2d)(x, tuple(size))


@op_class(factor=0)
def PixelShuffle(op: Any, x: Tensor) -> Tensor:
    """Channels become pixels: [N, C * f * f, H, W] to [N, C, H * f, W * f], where f is `factor`."""
    return F.pixel_shuffle(x, op.factor)


@op_class(factor=0)
def PixelShuffleBackward(op: Any, x: Tensor) -> Tensor:
    """Pixels become channels: [N, C, H * f, W * f] to [N, C * f * f, H, W], where f is `factor`."""
    *lead, c, h, w = x.shape
    f = op.factor
    if f < 1 or h % f or w % f:
        raise ShapeError(f"PixelShuffleBackward: factor {f} does not divide height {h} and width {w}")
    parts = F.reshape(x, (*lead, c, h // f, f, w // f, f))
    n = len(lead)
    order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
    return F.reshape(F.transpose(parts, order), (*lead, c * f * f, h // f, w // f))


@op_class(**_GEOMETRY, **_WINDOW)
def Images2Neibs(op: Any, x: Tensor) -> Tensor:
    """Windows of [N,C,H,W]: [N, C, rows, columns, kh, kw]."""
    return F.sliding_window(x, *_sizes(op, "window pad stride dilate"))


@op_class(out_h=0, out_w=0, **_GEOMETRY, **_WINDOW)
def SlidingWindowTranspose(op: Any, x: Tensor) -> Tensor:
    """Sums of windows put back into a picture [N,C,H,W]."""
    return F.sliding_window_transpose(x, *_sizes(op, "out window pad stride dilate"))
