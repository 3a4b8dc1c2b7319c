"""Normalisation of single samples."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import ArgumentError, OptionError, ShapeError, brief
from megengine.module import init
from megengine.module.module import Module
from megengine.ops.common import listed
from megengine.tensor import Parameter, Tensor


class _Affine(Module):
    """weight of ones and bias of zeros, or neither."""

    def __init__(self, shape: tuple[int, ...], eps: float, affine: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.eps, self.affine = eps, affine
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)


class GroupNorm(_Affine):
    """Normalises groups of channels of [N,C,...] (Wu and He 2018)."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, **kwargs: Any
    ) -> None:
        if num_channels % num_groups:
            raise OptionError(f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels}")
        super().__init__((num_channels,), eps, affine, **kwargs)
        self.num_groups, self.num_channels = num_groups, num_channels

    def forward(self, x: Tensor) -> Tensor:
        """[N,C,...], same out."""
        return F.group_norm(x, self.num_groups, self.affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return f"groups={self.num_groups}, channels={self.num_channels}, eps={self.eps}, affine={self.affine}"


class InstanceNorm(_Affine):
    """Normalises each channel of each sample of [N,C,...]."""

    def __init__(self, num_channels: int, eps: float = 1e-5, affine: bool = True, **kwargs: Any) -> None:
        super().__init__((num_channels,), eps, affine, **kwargs)
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        """[N,C,...], same out."""
        return F.instance_norm(x, self.affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return f"channels={self.num_channels}, eps={self.eps}, affine={self.affine}"


class LayerNorm(_Affine):
    """Normalises over the last axes, whose lengths are `normalized_shape` (Ba et al. 2016)."""

    def __init__(
        self, normalized_shape: int | tuple[int, ...], eps: float = 1e-5, affine: bool = True, **kwargs: Any
    ) -> None:
        shape = tuple(listed(normalized_shape))
        if not all(isinstance(n, numbers.Integral) for n in shape):
            raise ArgumentError(f"LayerNorm: normalized_shape is {brief(shape)}; expected integers")
        super().__init__(shape, eps, affine, **kwargs)
        self.normalized_shape = shape

    def forward(self, x: Tensor) -> Tensor:
        """[..., *normalized_shape], same out."""
        return F.layer_norm(x, self.normalized_shape, self.affine, self.weight, self.bias, self.eps)

    def _saved(self, tensor: Tensor) -> np.ndarray:
        # NOTE: MegEngine's state dicts hold vectors here, although the tensors have the normalized shape.
        return tensor.numpy().reshape(-1).copy()

    def _module_info_string(self) -> str:
        return f"normalized_shape={self.normalized_shape}, eps={self.eps}, affine={self.affine}"


class GeneralNorm(_Affine):
    """Normalises over chosen axes: `normalized_axis`, whose lengths are `normalized_shape`.

    Raises ShapeError unless there are as many lengths as axes.
    """

    def __init__(
        self,
        normalized_shape: int | tuple[int, ...] | None = None,
        normalized_axis: int | tuple[int, ...] = 0,
        eps: float = 1e-5,
        affine: bool = True,
        **kwargs: Any,
    ) -> None:
        axes = tuple(listed(normalized_axis))
        lengths = tuple(listed(() if normalized_shape is None else normalized_shape))
        if len(axes) != len(lengths):
            raise ShapeError(
                f"GeneralNorm: normalized_shape={normalized_shape} and normalized_axis={normalized_axis}; "
                "expected one length for each axis"
            )
        super().__init__(lengths, eps, affine, **kwargs)
        self.normalized_shape, self.normalized_axis = lengths, axes

    def forward(self, x: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.general_norm(x, self.normalized_axis, self.affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        where = f"normalized_shape={self.normalized_shape}, normalized_axis={self.normalized_axis}"
        return f"{where}, eps={self.eps}, affine={self.affine}"
