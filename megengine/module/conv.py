"""Convolutions and transposed convolutions."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, ClassVar

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.core.text import counted
from megengine.module import init
from megengine.module.module import Module
from megengine.ops.common import check_modes, choice
from megengine.tensor import Tensor

_Pair = int | tuple[int, int]
_Triple = int | tuple[int, int, int]


def _plain(value: Any) -> Any:
    """A NumPy integer as one of Python, which cannot overflow."""
    return int(value) if isinstance(value, numbers.Integral) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())


def _tuple(value: Any, length: int) -> tuple[int, ...]:
    if _is_whole(value):
        return (int(value),) * length
    sizes = tuple(map(int, value))
    if len(sizes) != length:
        raise OptionError(f"convolution: {value} has {counted(len(sizes), 'number')}; expected one, or {length}")
    return sizes


class _ConvNd(Module):
    """Base of all convolutions: geometry, weight, bias, initial values.

    The weight of a convolution is [O,I,*kernel], with groups [G,O/G,I/G,*kernel]; of a transposed one, [I,O,*kernel]
    and [G,I/G,O/G,*kernel]. The bias is [1,O,1,...].
    """

    _axes: ClassVar[int] = 2
    _transposed: ClassVar[bool] = False
    output_padding: Any = 0

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if in_channels < 1 or out_channels < 1:
            raise OptionError(
                f"{type(self).__name__}: in_channels={in_channels}, out_channels={out_channels}; expected at least 1"
            )
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise OptionError(
                f"{type(self).__name__}: groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        self.in_channels, self.out_channels, self.groups = map(_plain, (in_channels, out_channels, groups))
        self.kernel_size, self.stride, self.padding, self.dilation = (
            self._per_axis(v) for v in (kernel_size, stride, padding, dilation)
        )
        for name, value in (("kernel_size", kernel_size), ("stride", stride), ("dilation", dilation)):
            if min(_tuple(value, self._axes)) < 1:
                raise OptionError(f"{type(self).__name__}: {name} is {value}; expected at least 1")
        if min(_tuple(padding, self._axes)) < 0:
            raise OptionError(f"{type(self).__name__}: padding is {padding}; expected at least 0")
        self.output_padding = 0
        self.weight = init.parameter(self._infer_weight_shape())
        self.bias = init.parameter(self._infer_bias_shape()) if bias else None
        self.reset_parameters()

    def _set_modes(self, conv_mode: str, compute_mode: str) -> None:
        check_modes(type(self).__name__, conv_mode, compute_mode)
        self.conv_mode, self.compute_mode = conv_mode, compute_mode

    def _per_axis(self, value: Any) -> Any:
        return _tuple(value, self._axes)

    def _infer_weight_shape(self) -> tuple[int, ...]:
        g = self.groups
        first, second = self.out_channels, self.in_channels
        if self._transposed:
            first, second = second, first
        shape = (first // g, second // g, *_tuple(self.kernel_size, self._axes))
        return (g, *shape) if g > 1 else shape

    def _infer_bias_shape(self) -> tuple[int, ...]:
        return (1, self.out_channels, *[1] * self._axes)

    def _get_fanin(self) -> int:
        return math.prod(_tuple(self.kernel_size, self._axes)) * self.in_channels

    def reset_parameters(self) -> None:
        """Normal weights of variance 1 / (kernel elements * in_channels), bias 0."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self._get_fanin(), 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _module_info_string(self) -> str:
        parts = [f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"]
        usual = {"stride": 1, "padding": 0, "dilation": 1}
        for name, value in usual.items():
            have = getattr(self, name)
            if have not in (value, (value,) * self._axes):
                parts.append(f"{name}={have}")
        parts += [f"groups={self.groups}"] if self.groups != 1 else []
        parts += ["bias=False"] if self.bias is None else []
        return ", ".join(parts)


class _PaddedConv(_ConvNd):
    """Convolutions that can fill their padding with zeros, by reflection or by repeating the border."""

    _function: ClassVar[Callable[..., Tensor]] = staticmethod(F.conv2d)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Pair,
        stride: _Pair = 1,
        padding: _Pair = 0,
        dilation: _Pair = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, **kwargs)
        modes = ("zeros", "reflect", "replicate")
        self.padding_mode = choice(type(self).__name__, "padding_mode", padding_mode, modes, any_case=True)
        self._set_modes(conv_mode, compute_mode)

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with other weights."""
        inp, padding = self._padded(inp)
        geometry = (self.stride, padding, self.dilation, self.groups)
        return self._function(inp, weight, bias, *geometry, self.conv_mode, self.compute_mode)

    def get_pad_witdth(self) -> tuple[tuple[int, int], ...]:
        """(before, after) of every axis of the input; the name is spelt as in MegEngine."""
        return ((0, 0), (0, 0), *((p, p) for p in _tuple(self.padding, self._axes)))

    def _padded(self, inp: Tensor) -> tuple[Tensor, Any]:
        """The input and the padding that is left to the convolution."""
        if self.padding_mode == "zeros":
            return inp, self.padding
        return F.pad(inp, self.get_pad_witdth(), self.padding_mode), self._per_axis(0)


class Conv2d(_PaddedConv):
    """2-D convolution of [N,C,H,W]. Weight [O,C,kh,kw], with groups [G,O/G,C/G,kh,kw]; bias [1,O,1,1].

    Raises OptionError unless groups divides both numbers of channels, and for an unknown padding_mode.

    >>> layer = Conv2d(3, 8, 3, padding=1)
    >>> layer.weight.shape
    (8, 3, 3, 3)
    """

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return self.calc_conv(inp, self.weight, self.bias)


class ConvRelu2d(Conv2d):
    """`Conv2d` and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return F.relu(self.calc_conv(inp, self.weight, self.bias))


class ConvTranspose2d(_ConvNd):
    """Transposed 2-D convolution of [N,I,H,W]. Weight [I,O,kh,kw], with groups [G,I/G,O/G,kh,kw]; bias [1,O,1,1]."""

    _transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Pair,
        stride: _Pair = 1,
        padding: _Pair = 0,
        output_padding: _Pair = 0,
        dilation: _Pair = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, **kwargs)
        self.output_padding = self._per_axis(output_padding)
        self._set_modes(conv_mode, compute_mode)

    def _get_fanin(self) -> int:
        # NOTE: MegEngine counts the output channels here, and the input channels in three dimensions.
        return math.prod(_tuple(self.kernel_size, 2)) * self.out_channels

    def calc_conv_transpose2d(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The transposed convolution with other weights."""
        geometry = (self.stride, self.padding, self.output_padding, self.dilation, self.groups)
        return F.conv_transpose2d(inp, weight, bias, *geometry, self.conv_mode, self.compute_mode)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,I,H,W] -> [N,O,oh,ow]."""
        return self.calc_conv_transpose2d(inp, self.weight, self.bias)


class ConvTransposeRelu2d(ConvTranspose2d):
    """`ConvTranspose2d` and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,I,H,W] -> [N,O,oh,ow]."""
        return F.relu(self.calc_conv_transpose2d(inp, self.weight, self.bias))


class Conv1d(_PaddedConv):
    """1-D convolution of [N,C,L]. Weight [O,C,k], with groups [G,O/G,C/G,k]; bias [1,O,1]."""

    _axes = 1
    _function = staticmethod(F.conv1d)

    def _per_axis(self, value: Any) -> Any:
        return _tuple(value, 1)[0]  # MegEngine keeps plain numbers here

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,L] -> [N,O,ol]."""
        return self.calc_conv(inp, self.weight, self.bias)


class Conv3d(_ConvNd):
    """3-D convolution of [N,C,D,H,W]. Weight [O,C,kd,kh,kw], with groups [G,O/G,C/G,kd,kh,kw]; bias [1,O,1,1,1]."""

    _axes = 3

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Triple,
        stride: _Triple = 1,
        padding: _Triple = 0,
        dilation: _Triple = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        check_modes(type(self).__name__, conv_mode)
        self.conv_mode = conv_mode

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with other weights."""
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        return F.conv3d(inp, weight, bias, *geometry, self.conv_mode)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,D,H,W] -> [N,O,od,oh,ow]."""
        return self.calc_conv(inp, self.weight, self.bias)


class ConvTranspose3d(_ConvNd):
    """Transposed 3-D convolution of [N,I,D,H,W]. Weight [I,O,kd,kh,kw], with groups [G,I/G,O/G,kd,kh,kw]."""

    _axes = 3
    _transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Triple,
        stride: _Triple = 1,
        padding: _Triple = 0,
        output_padding: _Triple = 0,
        dilation: _Triple = 1,
        groups: int = 1,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.output_padding = output_padding

    def forward(self, inp: Tensor) -> Tensor:
        """[N,I,D,H,W] -> [N,O,od,oh,ow]."""
        geometry = (self.stride, self.padding, self.output_padding, self.dilation, self.groups)
        return F.conv_transpose3d(inp, self.weight, self.bias, *geometry)


class LocalConv2d(Conv2d):
    """A convolution of [N,C,H,W] with a kernel of its own at every place; no bias.

    The size of the input is fixed. Weight [groups, oh, ow, C/groups, kh, kw, O/groups].
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        input_height: int,
        input_width: int,
        kernel_size: _Pair,
        stride: _Pair = 1,
        padding: _Pair = 0,
        dilation: _Pair = 1,
        groups: int = 1,
        conv_mode: str = "cross_correlation",
        **kwargs: Any,
    ) -> None:
        self.input_height, self.input_width = _plain(input_height), _plain(input_width)
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(*geometry, bias=False, conv_mode=conv_mode, **kwargs)

    def _infer_weight_shape(self) -> tuple[int, ...]:
        size = zip(
            (self.input_height, self.input_width),
            *(_tuple(v, 2) for v in (self.kernel_size, self.stride, self.padding, self.dilation)),
            strict=True,
        )
        oh, ow = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in size)
        g, kernel = self.groups, _tuple(self.kernel_size, 2)
        return (g, oh, ow, self.in_channels // g, *kernel, self.out_channels // g)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return F.local_conv2d(
            inp, self.weight, None, self.stride, self.padding, self.dilation, conv_mode=self.conv_mode
        )


class RegionRestrictedConv(_PaddedConv):
    """A convolution of [N,C,H,W] whose taps count only where input and output lie in the same region.

    Weight [G,O/G,C/G,kh,kw], with one group too; regions are integer maps of the input and of the output.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Pair,
        groups: int = 1,
        bias: bool = True,
        stride: _Pair = 1,
        padding: _Pair = 0,
        dilation: _Pair = 1,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        super().__init__(*geometry, bias, conv_mode, compute_mode, padding_mode, **kwargs)

    def _infer_weight_shape(self) -> tuple[int, ...]:
        shape = super()._infer_weight_shape()
        return shape if self.groups > 1 else (1, *shape)

    get_pad_width = _PaddedConv.get_pad_witdth

    def calc_conv(self, inp: Tensor, weight: Tensor, rin: Tensor, rout: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with other weights."""
        inp, padding = self._padded(inp)
        geometry = (self.stride, padding, self.dilation, self.groups)
        return F.region_restricted_conv(inp, weight, rin, rout, bias, *geometry, self.conv_mode, self.compute_mode)

    def forward(self, inp: Tensor, rin: Tensor, rout: Tensor) -> Tensor:
        """[N,C,H,W], regions [N,H,W] and [N,oh,ow] -> [N,O,oh,ow]."""
        return self.calc_conv(inp, self.weight, rin, rout, self.bias)


class DeformableConv2d(_ConvNd):
    """A convolution of [N,C,H,W] whose taps are moved by offsets and weighted by a mask (Zhu et al. 2019)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Pair,
        stride: _Pair = 1,
        padding: _Pair = 0,
        dilation: _Pair = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, **kwargs)
        self._set_modes(conv_mode, compute_mode)

    def calc_conv(self, inp: Tensor, weight: Tensor, offset: Tensor, mask: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with other weights."""
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        return F.deformable_conv2d(inp, weight, offset, mask, bias, *geometry, self.conv_mode, self.compute_mode)

    def forward(self, inp: Tensor, offset: Tensor, mask: Tensor) -> Tensor:
        """[N,C,H,W], offset [N,2*D*kh*kw,oh,ow], mask [N,D*kh*kw,oh,ow] -> [N,O,oh,ow]."""
        return self.calc_conv(inp, self.weight, offset, mask, self.bias)
