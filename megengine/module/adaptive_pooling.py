"""Pooling to a given size."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class _AdaptivePoolNd(Module):
    def __init__(self, oshp: int | tuple[int, int] | Tensor, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.oshp = oshp


class AdaptiveMaxPool2d(_AdaptivePoolNd):
    """Largest elements over a grid of `oshp` cells."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.adaptive_max_pool2d(inp, self.oshp)


class AdaptiveAvgPool2d(_AdaptivePoolNd):
    """Means over a grid of `oshp` cells."""

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W] -> [N,C,oh,ow]."""
        return F.adaptive_avg_pool2d(inp, self.oshp)
