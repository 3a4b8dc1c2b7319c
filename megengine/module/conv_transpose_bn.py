"""Transposed convolution with batch normalisation."""

from __future__ import annotations

from typing import Any

from megengine.module.batchnorm import BatchNorm2d
from megengine.module.conv import ConvTranspose2d
from megengine.module.fused import WithBatchNorm


class ConvTransposeBn2d(WithBatchNorm):
    """Transposed convolution and batch normalisation."""

    _layer = "conv_transpose2d"

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
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        geometry = (in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups, bias)
        self.conv_transpose2d = ConvTranspose2d(*geometry)
        self.bn = BatchNorm2d(out_channels, eps, momentum, affine, track_running_stats)


class ConvTransposeBnRelu2d(ConvTransposeBn2d):
    """Transposed convolution, batch normalisation and ReLU."""

    _relu = True
