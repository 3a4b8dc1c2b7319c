"""Concatenation as a layer."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class Concat(Module):
    """Concatenation as a layer."""

    def forward(self, inps: Any, axis: int = 0) -> Tensor:
        """Tensors one after the other."""
        return F.concat(inps, axis)
