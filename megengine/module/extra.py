"""Normalisation of samples, embeddings, fused linear and transposed layers, padding and rearranging."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import OptionError, ShapeError
from megengine.module import init
from megengine.module.layers import BatchNorm1d, BatchNorm2d, ConvTranspose2d, Linear
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class _Affine(Module):
    """weight of ones and bias of zeros, or neither."""

    def __init__(self, shape: tuple[int, ...], eps: float, affine: bool) -> None:
        super().__init__()
        self.eps, self.affine = eps, affine
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None


class LayerNorm(_Affine):
    """Normalises over the last axes, whose lengths are `normalized_shape`."""

    def __init__(self, normalized_shape: Any, eps: float = 1e-5, affine: bool = True, **kwargs: Any) -> None:
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        super().__init__(shape, eps, affine)
        self.normalized_shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """[..., *normalized_shape], same out."""
        return F.layer_norm(x, self.normalized_shape, self.affine, self.weight, self.bias, self.eps)


class GroupNorm(_Affine):
    """Normalises groups of channels of [N,C,...]."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, **kwargs: Any
    ) -> None:
        if num_channels % num_groups:
            raise OptionError(f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels}")
        super().__init__((num_channels,), eps, affine)
        self.num_groups, self.num_channels = num_groups, num_channels

    def forward(self, x: Tensor) -> Tensor:
        """[N,C,...], same out."""
        return F.group_norm(x, self.num_groups, self.affine, self.weight, self.bias, self.eps)


class InstanceNorm(_Affine):
    """Normalises each channel of each sample of [N,C,...]."""

    def __init__(self, num_channels: int, eps: float = 1e-5, affine: bool = True, **kwargs: Any) -> None:
        super().__init__((num_channels,), eps, affine)
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        """[N,C,...], same out."""
        return F.instance_norm(x, self.affine, self.weight, self.bias, self.eps)


class PReLU(Module):
    """x where positive, else x times a learnt slope: one, or one per channel."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, **kwargs: Any) -> None:
        super().__init__()
        self.num_parameters = num_parameters
        shape = (1,) if num_parameters == 1 else (1, num_parameters, 1, 1)
        self.weight = Parameter(np.full(shape, init, np.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        """[N,C,...], same out."""
        return F.prelu(inputs, self.weight)


class Embedding(Module):
    """Rows of a learnt table [num_embeddings, embedding_dim] by index."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
        initial_weight: Parameter | None = None,
        freeze: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if padding_idx is not None or max_norm is not None or norm_type is not None:
            raise OptionError("Embedding: padding_idx, max_norm and norm_type are not supported, as in MegEngine")
        shape = (num_embeddings, embedding_dim)
        if initial_weight is not None and initial_weight.shape != shape:
            raise ShapeError(f"Embedding: initial_weight has shape {initial_weight.shape}; expected {shape}")
        self.num_embeddings, self.embedding_dim, self.freeze = num_embeddings, embedding_dim, freeze
        self.weight = Parameter(init.parameter(shape) if initial_weight is None else initial_weight)
        if initial_weight is None:
            init.normal_(self.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Integers [...] -> [..., embedding_dim]."""
        return F.embedding(inputs, self.weight.detach() if self.freeze else self.weight)


class Pad(Module):
    """Lengthens axes by (before, after)."""

    def __init__(self, pad_width: Any, mode: str = "constant", constant_val: float = 0.0) -> None:
        super().__init__()
        self.pad_width, self.mode, self.pad_val = pad_width, mode, constant_val

    def forward(self, src: Tensor) -> Tensor:
        """Any shape with as many axes as pairs."""
        return F.pad(src, self.pad_width, self.mode, self.pad_val)


class PixelShuffle(Module):
    """[..., C*r*r, H, W] -> [..., C, H*r, W*r]."""

    def __init__(self, upscale_factor: int, **kwargs: Any) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.pixel_shuffle(x, self.upscale_factor)


class LinearRelu(Linear):
    """Linear and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return F.relu(super().forward(inp))


class LinearBn1d(Module):
    """Linear and batch normalisation."""

    _relu = False

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.linear = Linear(in_features, out_features, bias, compute_mode)
        self.bn = BatchNorm1d(out_features, eps, momentum, affine, track_running_stats)

    def forward(self, inp: Tensor) -> Tensor:
        """[N, in_features] -> [N, out_features]."""
        out = self.bn(self.linear(inp))
        return F.relu(out) if self._relu else out


class LinearBnRelu1d(LinearBn1d):
    """Linear, batch normalisation and ReLU."""

    _relu = True


class ConvTransposeRelu2d(ConvTranspose2d):
    """Transposed convolution and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,I,H,W] -> [N,O,oh,ow]."""
        return F.relu(super().forward(inp))


class ConvTransposeBn2d(Module):
    """Transposed convolution and batch normalisation."""

    _relu = False

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

    def forward(self, inp: Tensor) -> Tensor:
        """[N,I,H,W] -> [N,O,oh,ow]."""
        out = self.bn(self.conv_transpose2d(inp))
        return F.relu(out) if self._relu else out


class ConvTransposeBnRelu2d(ConvTransposeBn2d):
    """Transposed convolution, batch normalisation and ReLU."""

    _relu = True
