"""Linear layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.module import init
from megengine.module.fused import WithReLU
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class Linear(Module):
    """inp [..., in_features] -> [..., out_features]. Weight [out, in], bias [out]."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, compute_mode: str = "default", **kwargs: Any
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(init.parameter((out_features, in_features)))
        self.bias = Parameter(init.parameter((out_features,))) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal weights of variance 1 / in_features, bias 0."""
        init.normal_(self.weight, 0.0, float(np.sqrt(1 / self.in_features)))

    def forward(self, x: Tensor) -> Tensor:
        """Matrix product with the weight, plus bias."""
        return F.linear(x, self.weight, self.bias)

    def _module_info_string(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class LinearRelu(WithReLU, Linear):
    """Linear and ReLU."""
