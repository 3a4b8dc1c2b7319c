"""Dropout."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class Dropout(Module):
    """Zero a share of elements in training."""

    def __init__(self, drop_prob: float = 0.0, **kwargs: Any) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape."""
        return F.dropout(inputs, self.drop_prob, self.training)
