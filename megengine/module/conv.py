"""Convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.module import init
from megengine.module.fused import WithReLU
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


class _ConvNd(Module):
    """What convolution and transposed convolution share: geometry, weight, bias, initial values."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> None:
        super().__init__()
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise OptionError(
                f"{type(self).__name__}: groups={groups} must divide in_channels={in_channels} and "
                f"out_channels={out_channels}"
            )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = _pair(kernel_size), _pair(stride)
        self.padding, self.dilation = _pair(padding), _pair(dilation)

    def _make(self, first: int, second: int, bias: bool) -> None:
        g = self.groups
        shape = (first // g, second // g, *self.kernel_size)
        self.weight = Parameter(init.parameter((g, *shape) if g > 1 else shape))
        self.bias = Parameter(init.parameter((1, self.out_channels, 1, 1))) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as He et al. 2015 (normal, fan in), bias 0."""
        fan_in = int(np.prod(self.kernel_size)) * self.in_channels // self.groups
        init.normal_(self.weight, 0.0, float(np.sqrt(1 / fan_in)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _module_info_string(self) -> str:
        parts = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        return parts + f", padding={self.padding}, groups={self.groups}, bias={self.bias is not None}"


class Conv2d(_ConvNd):
    """2-D convolution of [N,C,H,W]. Weight [O,C,kh,kw], with groups (G,O/G,C/G,kh,kw); bias (1,O,1,1)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        if padding_mode not in ("zeros", "reflect", "replicate"):
            raise OptionError(f"Conv2d: padding_mode is {padding_mode!r}; expected zeros, reflect or replicate")
        self.conv_mode, self.compute_mode, self.padding_mode = conv_mode, compute_mode, padding_mode
        self._make(out_channels, in_channels, bias)

    def calc_conv(self, inp: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with other weights."""
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            (h, w), padding = padding, 0
            inp = F.pad(inp, ((0, 0), (0, 0), (h, h), (w, w)), mode=self.padding_mode)
        return F.conv2d(inp, weight, bias, self.stride, padding, self.dilation, self.groups)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return self.calc_conv(inp, self.weight, self.bias)


class ConvRelu2d(WithReLU, Conv2d):
    """Convolution and ReLU."""


class ConvTranspose2d(_ConvNd):
    """Transposed 2-D convolution. Weight [I,O,kh,kw], with groups (G,I/G,O/G,kh,kw); bias (1,O,1,1)."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, groups)
        self.output_padding = _pair(output_padding)
        self._make(in_channels, out_channels, bias)

    def forward(self, inp: Tensor) -> Tensor:
        """[N,I,H,W] -> [N,O,oh,ow]."""
        args = (self.stride, self.padding, self.output_padding, self.dilation, self.groups)
        return F.conv_transpose2d(inp, self.weight, self.bias, *args)


class ConvTransposeRelu2d(WithReLU, ConvTranspose2d):
    """Transposed convolution and ReLU."""
