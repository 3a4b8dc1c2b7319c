"""What fused layers share."""

from __future__ import annotations

from typing import ClassVar

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class WithReLU(Module):
    """Mixin: the layer behind it in the order of classes, then ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        """Shapes are those of the layer."""
        return F.relu(super().forward(inp))


class WithBatchNorm(Module):
    """A layer (the attribute that `_layer` names), then batch normalisation `bn`, then ReLU if `_relu`."""

    _layer: ClassVar[str]
    _relu: ClassVar[bool] = False

    def forward(self, inp: Tensor) -> Tensor:
        """Shapes are those of the layer."""
        out = self.bn(getattr(self, self._layer)(inp))
        return F.relu(out) if self._relu else out
