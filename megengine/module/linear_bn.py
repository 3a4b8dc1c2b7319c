"""Fully connected layer and batch normalisation in one."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.module.batchnorm import BatchNorm1d
from megengine.module.linear import Linear
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class _LinearBnActivation1d(Module):
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
        super().__init__(**kwargs)
        self.out_features, self.in_features = out_features, in_features
        # NOTE: MegEngine's state dicts have this entry beside linear.bias, which is the one that is used.
        self.bias = Parameter(np.zeros((out_features,), np.float32)) if bias else None
        self.linear = Linear(in_features, out_features, bias, compute_mode)
        self.bn = BatchNorm1d(out_features, eps, momentum, affine, track_running_stats)


class LinearBn1d(_LinearBnActivation1d):
    """`Linear` and `BatchNorm1d`."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N, in_features] -> [N, out_features]."""
        return self.bn(self.linear(inp))


class LinearBnRelu1d(_LinearBnActivation1d):
    """`Linear`, `BatchNorm1d` and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N, in_features] -> [N, out_features]."""
        return F.relu(self.bn(self.linear(inp)))
