"""Fully connected layers."""

from __future__ import annotations

import math
from typing import Any

from megengine import functional as F
from megengine.module import init
from megengine.module.module import Module
from megengine.ops.common import check_modes
from megengine.tensor import Tensor


class Linear(Module):
    """inp [..., in_features] -> [..., out_features]. Weight [out, in], bias [out]."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, compute_mode: str = "default", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        check_modes(type(self).__name__, compute_mode=compute_mode)
        self.out_features, self.in_features = out_features, in_features
        self.weight = init.parameter((out_features, in_features))
        self.bias = init.parameter((out_features,)) if bias else None
        self.compute_mode = compute_mode
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal weights of variance 1 / in_features, bias 0."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self.in_features, 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def calc_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer with other weights."""
        return F.linear(x, weight, bias, compute_mode=self.compute_mode)

    def forward(self, x: Tensor) -> Tensor:
        """Matrix product with the weight, plus bias."""
        return self.calc_linear(x, self.weight, self.bias)

    def _module_info_string(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class LinearRelu(Linear):
    """`Linear` and ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """[..., in_features] -> [..., out_features]."""
        return F.relu(self.calc_linear(inp, self.weight, self.bias))
