"""Op classes of convolutions, windows and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine import functional as F
from megengine.compat.opdef import OpDef, choice, integers, word_of
from megengine.compat.shapes import STRATEGY
from megengine.core.errors import OptionError, ShapeError
from megengine.tensor import Tensor

FORMAT = choice(
    "Convolution.Format",
    "NCHW NHWC NHWCD4 NCHW4 NCHW8 NCHW32 NCHW88 NCHW44 NCHW44_DOT NCHW4_NCHW32 NCHW32_NCHW4 NCHW4_NCHW NHWC_NCHW "
    "NHWC_NCHW4_IC_SMALL NCHW_NCHW4_IC_SMALL CHWN4 NCHW64 NCHW4_NHWC",
)
MODE = choice("Convolution.Mode", "CROSS_CORRELATION CONVOLUTION")
SPARSE = choice("Convolution.Sparse", "DENSE GROUP")
COMPUTE_MODE = choice("Convolution.ComputeMode", "DEFAULT FLOAT32")
NONLINE_MODE = choice("ConvBias.NonlineMode", "IDENTITY RELU SIGMOID H_SWISH")
_AFTER = {"IDENTITY": lambda y: y, "RELU": F.relu, "SIGMOID": F.sigmoid, "H_SWISH": F.hswish}


def refuse_other_formats(op: OpDef, *known: str) -> str:
    """The order of the axes in lower case. Raises OptionError for one that is not known here."""
    word = word_of(getattr(op, "format"))  # noqa: B009
    if word not in known:
        raise OptionError(f"{op!r}: format is {word}; expected {' or '.join(known)}: layouts are chosen by plans here")
    return word


def _refuse(op: OpDef) -> None:
    refuse_other_formats(op, "NCHW", "NCDHW")
    if getattr(op, "mode") != "CROSS_CORRELATION":  # noqa: B009
        raise OptionError(
            f"{op!r}: mode is CONVOLUTION, for which MegEngine 1 computes a cross-correlation too; "
            "write CROSS_CORRELATION, or turn the weights"
        )


class _Convolution(OpDef):
    Mode, Sparse, Format, ComputeMode, Strategy = MODE, SPARSE, FORMAT, COMPUTE_MODE, STRATEGY
    mode: str = MODE.CROSS_CORRELATION
    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    dilate_h: int = 1
    dilate_w: int = 1
    sparse: str = SPARSE.DENSE
    format: str = FORMAT.NCHW
    compute_mode: str = COMPUTE_MODE.DEFAULT

    def windows(self) -> dict[str, Any]:
        """Padding, stride, dilation and the like as functions take them."""
        _refuse(self)
        return {
            "stride": (self.stride_h, self.stride_w),
            "padding": (self.pad_h, self.pad_w),
            "dilation": (self.dilate_h, self.dilate_w),
        }

    def groups(self, weight: Tensor) -> int:
        """The first axis of a weight in groups."""
        return weight.shape[0] if self.sparse == "GROUP" else 1


class Convolution(_Convolution):
    """A convolution of [N,C,H,W] without a bias."""

    strategy: str = STRATEGY.HEURISTIC

    def run(self, x: Tensor, weight: Tensor) -> Tensor:
        """Weights of groups have an axis more."""
        return F.conv2d(x, weight, None, groups=self.groups(weight), **self.windows())


class ConvBias(OpDef):
    """A convolution, a bias, another summand, and a function of the sum."""

    NonlineMode, Mode, Sparse, Format, ComputeMode, Strategy = (
        NONLINE_MODE,
        MODE,
        SPARSE,
        FORMAT,
        COMPUTE_MODE,
        STRATEGY,
    )
    nonlineMode: str = NONLINE_MODE.IDENTITY  # noqa: N815
    mode: str = MODE.CROSS_CORRELATION
    sparse: str = SPARSE.DENSE
    format: str = FORMAT.NCHW
    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    dilate_h: int = 1
    dilate_w: int = 1
    compute_mode: str = COMPUTE_MODE.DEFAULT
    strategy: str = STRATEGY.HEURISTIC
    dtype: Any = None

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, z: Tensor | None = None) -> Tensor:
        """In real numbers; the result is rounded to `dtype`."""
        options = {name: getattr(self, name) for name in _Convolution._defaults}
        y = Convolution(**options).run(x.astype("float32"), weight.astype("float32"))
        for summand in (bias, z):
            y = y if summand is None else y + summand.astype("float32")
        y = _AFTER[word_of(self.nonlineMode)](y)
        return y if self.dtype is None else y.astype(self.dtype)


class BatchConvBias(OpDef):
    """A convolution of every picture with weights of its own."""

    NonlineMode, Mode, Sparse, Format, ComputeMode, Strategy = (
        NONLINE_MODE,
        MODE,
        SPARSE,
        FORMAT,
        COMPUTE_MODE,
        STRATEGY,
    )
    nonlineMode: str = NONLINE_MODE.IDENTITY  # noqa: N815
    mode: str = MODE.CROSS_CORRELATION
    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    dilate_h: int = 1
    dilate_w: int = 1
    sparse: str = SPARSE.DENSE
    format: str = FORMAT.NCHW
    compute_mode: str = COMPUTE_MODE.DEFAULT
    strategy: str = STRATEGY.HEURISTIC
    dtype: Any = None

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, z: Tensor | None = None) -> Tensor:
        """Weights are [N, ...]."""
        one = ConvBias(**{name: getattr(self, name) for name in self._defaults})
        pictures = range(x.shape[0])
        return F.concat([one.run(x[k : k + 1], weight[k], bias, None if z is None else z[k : k + 1]) for k in pictures])


class ConvolutionBackwardData(_Convolution):
    """The gradient of a convolution to its input: a transposed convolution. Weights come first."""

    strategy: str = STRATEGY.HEURISTIC
    dtype: Any = None

    def run(self, weight: Tensor, y: Tensor, like: Tensor | None = None) -> Tensor:
        """As large as `like` (a shape or a tensor of that shape); the smallest that fits without it."""
        options = self.windows()
        more: Any = 0
        if like is not None:
            lengths = integers("ConvolutionBackwardData", like) if like.ndim == 1 else list(like.shape)
            plain = F.conv_transpose2d(y, weight, None, groups=self.groups(weight), **options)
            more = tuple(want - have for want, have in zip(lengths[-2:], plain.shape[-2:], strict=True))
        return F.conv_transpose2d(y, weight, None, output_padding=more, groups=self.groups(weight), **options)


class Convolution3D(OpDef):
    """A convolution of [N,C,D,H,W] without a bias."""

    Mode = choice("Convolution3D.Mode", "CROSS_CORRELATION CONVOLUTION")
    Sparse = choice("Convolution3D.Sparse", "DENSE GROUP")
    DataType = choice("Convolution3D.DataType", "FLOAT FLOAT_IO16xC32")
    Format = choice("Convolution3D.Format", "NCDHW NDHWC")
    Strategy = STRATEGY
    mode: str = Mode.CROSS_CORRELATION
    pad_d: int = 0
    pad_h: int = 0
    pad_w: int = 0
    stride_d: int = 1
    stride_h: int = 1
    stride_w: int = 1
    dilate_d: int = 1
    dilate_h: int = 1
    dilate_w: int = 1
    sparse: str = Sparse.DENSE
    data_type: str = DataType.FLOAT
    format: str = Format.NCDHW
    strategy: str = STRATEGY.HEURISTIC

    def windows(self) -> dict[str, Any]:
        """Padding, stride and dilation as functions take them."""
        _refuse(self)
        return {
            "stride": (self.stride_d, self.stride_h, self.stride_w),
            "padding": (self.pad_d, self.pad_h, self.pad_w),
            "dilation": (self.dilate_d, self.dilate_h, self.dilate_w),
        }

    def run(self, x: Tensor, weight: Tensor) -> Tensor:
        """Weights of groups have an axis more."""
        groups = weight.shape[0] if self.sparse == "GROUP" else 1
        return F.conv3d(x, weight, None, groups=groups, **self.windows())


class Convolution3DBackwardData(Convolution3D):
    """A transposed convolution of [N,C,D,H,W]. Weights come first."""

    def run(self, weight: Tensor, y: Tensor) -> Tensor:
        """The smallest input that gives `y`."""
        groups = weight.shape[0] if self.sparse == "GROUP" else 1
        return F.conv_transpose3d(y, weight, None, groups=groups, **self.windows())


class GroupLocal(_Convolution):
    """A convolution whose weights differ from place to place: [groups, H, W, C / groups, kh, kw, out / groups]."""

    def run(self, x: Tensor, weight: Tensor) -> Tensor:
        """Of [N,C,H,W]."""
        return F.local_conv2d(x, weight, None, **self.windows())


class DeformableConv(_Convolution):
    """A convolution that reads at moved places, weighted by a mask."""

    strategy: str = STRATEGY.HEURISTIC

    def run(self, x: Tensor, weight: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
        """Of [N,C,H,W]."""
        return F.deformable_conv2d(x, weight, offset, mask, None, groups=self.groups(weight), **self.windows())


class RegionRestrictedConvolution(_Convolution):
    """A convolution of groups that only joins pixels of one region."""

    def run(self, x: Tensor, weight: Tensor, rin: Tensor, rout: Tensor) -> Tensor:
        """Of [N,C,H,W]."""
        return F.nn.region_restricted_conv(x, weight, rin, rout, None, groups=self.groups(weight), **self.windows())


class RegionRestrictedConvolutionBackwardData(_Convolution):
    """The gradient of a region restricted convolution to its input."""

    def run(self, *inputs: Tensor) -> Any:
        """Refused: it is computed where a gradient is asked for."""
        raise OptionError(f"{self!r}: the gradient to the input comes from GradManager.backward")


# ---------------------------------------------------------------- windows


class Pooling(OpDef):
    """Largest or mean values of windows."""

    Mode = choice("Pooling.Mode", "MAX AVERAGE AVERAGE_COUNT_EXCLUDE_PADDING")
    Format, Strategy = FORMAT, STRATEGY
    mode: str = Mode.MAX
    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 2
    stride_w: int = 2
    window_h: int = 2
    window_w: int = 2
    format: str = FORMAT.NCHW
    strategy: str = STRATEGY.HEURISTIC

    def run(self, x: Tensor) -> Tensor:
        """Of [N,C,H,W]; one of the modes of a mean counts padding, the other does not."""
        refuse_other_formats(self, "NCHW")
        window = (self.window_h, self.window_w), (self.stride_h, self.stride_w), (self.pad_h, self.pad_w)
        if self.mode == "MAX":
            return F.max_pool2d(x, *window)
        return F.avg_pool2d(x, *window, mode=word_of(self.mode).lower())


class AdaptivePooling(OpDef):
    """Pooling to a size, which is a tensor or an option."""

    Mode, Format = Pooling.Mode, FORMAT
    mode: str = Pooling.Mode.MAX
    format: str = FORMAT.NCHW
    shape: Sequence[int] = ()

    def run(self, x: Tensor, shape: Tensor | None = None) -> Tensor:
        """Of [N,C,H,W]."""
        refuse_other_formats(self, "NCHW")
        size = integers("AdaptivePooling", shape) if shape is not None else list(self.shape)
        size = size * 2 if len(size) == 1 else size
        return (F.adaptive_max_pool2d if self.mode == "MAX" else F.adaptive_avg_pool2d)(x, tuple(size))


class PixelShuffle(OpDef):
    """Channels become pixels: [N, C * f * f, H, W] to [N, C, H * f, W * f]."""

    factor: int = 0

    def run(self, x: Tensor) -> Tensor:
        """`factor` is f."""
        return F.pixel_shuffle(x, self.factor)


class PixelShuffleBackward(OpDef):
    """Pixels become channels: [N, C, H * f, W * f] to [N, C * f * f, H, W]."""

    factor: int = 0

    def run(self, x: Tensor) -> Tensor:
        """`factor` is f."""
        *lead, c, h, w = x.shape
        f = self.factor
        if f < 1 or h % f or w % f:
            raise ShapeError(f"PixelShuffleBackward: factor {f} does not divide height {h} and width {w}")
        parts = F.reshape(x, (*lead, c, h // f, f, w // f, f))
        n = len(lead)
        order = [*range(n), n, n + 2, n + 4, n + 1, n + 3]
        return F.reshape(F.transpose(parts, order), (*lead, c * f * f, h // f, w // f))


class Images2Neibs(OpDef):
    """Windows of a picture: [N, C, rows, columns, kh, kw]."""

    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    dilate_h: int = 1
    dilate_w: int = 1
    window_h: int = 3
    window_w: int = 3

    def run(self, x: Tensor) -> Tensor:
        """Of [N,C,H,W]."""
        return F.sliding_window(
            x,
            (self.window_h, self.window_w),
            (self.pad_h, self.pad_w),
            (self.stride_h, self.stride_w),
            (self.dilate_h, self.dilate_w),
        )


class SlidingWindowTranspose(OpDef):
    """Sums of windows put back into a picture."""

    out_h: int = 0
    out_w: int = 0
    pad_h: int = 0
    pad_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    dilate_h: int = 1
    dilate_w: int = 1
    window_h: int = 3
    window_w: int = 3

    def run(self, x: Tensor) -> Tensor:
        """[N,C,H,W]."""
        return F.sliding_window_transpose(
            x,
            (self.out_h, self.out_w),
            (self.window_h, self.window_w),
            (self.pad_h, self.pad_w),
            (self.stride_h, self.stride_w),
            (self.dilate_h, self.dilate_w),
        )
