"""Convolution and batch normalisation in one layer."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.batchnorm import BatchNorm2d
from megengine.module.conv import Conv2d
from megengine.module.module import Module
from megengine.tensor import Tensor


class _ConvBnActivation2d(Module):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        padding_mode: str = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.conv = Conv2d(*geometry, conv_mode, compute_mode, padding_mode)
        self.bn = BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats)


class ConvBn2d(_ConvBnActivation2d):
    """`Conv2d` and `BatchNorm2d`."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return self.bn(self.conv(inp))


class ConvBnRelu2d(_ConvBnActivation2d):
    """`Conv2d`, `BatchNorm2d` and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,O,oh,ow]."""
        return F.relu(self.bn(self.conv(inp)))
