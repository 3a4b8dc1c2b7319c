"""Convolution with batch normalisation."""

from __future__ import annotations

from typing import Any

from megengine.module.batchnorm import BatchNorm2d
from megengine.module.conv import Conv2d
from megengine.module.fused import WithBatchNorm


class ConvBn2d(WithBatchNorm):
    """Convolution and batch normalisation."""

    _layer = "conv"

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
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        geometry = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias)
        self.conv = Conv2d(*geometry, conv_mode, compute_mode, padding_mode)
        self.bn = BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats)


class ConvBnRelu2d(ConvBn2d):
    """Convolution, batch normalisation and ReLU."""

    _relu = True
