"""Concatenation as a layer."""

from __future__ import annotations

from collections.abc import Iterable

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class Concat(Module):
    """`F.concat` as a layer, so that its result can be quantized."""

    def forward(self, inps: Iterable[Tensor], axis: int = 0) -> Tensor:
        """Tensors one after the other along an axis."""
        return F.concat(inps, axis)
