"""Normalisation of samples."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import OptionError
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
