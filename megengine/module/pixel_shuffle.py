"""Channels to space."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class PixelShuffle(Module):
    """[..., C*r*r, H, W] -> [..., C, H*r, W*r] (Shi et al. 2016)."""

    def __init__(self, upscale_factor: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return F.pixel_shuffle(x, self.upscale_factor)
