"""Dropout."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.module.module import Module
from megengine.tensor import Tensor


class Dropout(Module):
    """In training zero each element with probability `drop_prob` and scale the rest by 1 / (1 - drop_prob)."""

    def __init__(self, drop_prob: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= drop_prob < 1:
            raise OptionError(f"Dropout: drop_prob is {drop_prob}; expected 0 <= drop_prob < 1")
        self.drop_prob = drop_prob

    def forward(self, inputs: Tensor) -> Tensor:
        """Any shape, same out."""
        return F.dropout(inputs, self.drop_prob, self.training) if self.training else inputs

    def _module_info_string(self) -> str:
        return f"drop_prob={self.drop_prob}"
