"""Pooling to a given size."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class AdaptiveAvgPool2d(Module):
    """Means over a grid of the given size."""

    def __init__(self, oshp: Any, **kwargs: Any) -> None:
        super().__init__()
        self.oshp = oshp

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.adaptive_avg_pool2d(inp, self.oshp)


class AdaptiveMaxPool2d(AdaptiveAvgPool2d):
    """Largest elements over a grid of the given size."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.adaptive_max_pool2d(inp, self.oshp)
