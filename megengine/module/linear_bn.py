"""Linear layer with batch normalisation."""

from __future__ import annotations

from typing import Any

from megengine.module.batchnorm import BatchNorm1d
from megengine.module.fused import WithBatchNorm
from megengine.module.linear import Linear


class LinearBn1d(WithBatchNorm):
    """Linear and batch normalisation."""

    _layer = "linear"

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


class LinearBnRelu1d(LinearBn1d):
    """Linear, batch normalisation and ReLU."""

    _relu = True
