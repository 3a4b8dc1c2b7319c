"""Local response normalisation."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.module.module import Module
from megengine.tensor import Tensor


class LocalResponseNorm(Module):
    """x / (k + alpha * sum of squares over `kernel_size` neighbouring channels) ** beta (Krizhevsky et al. 2012)."""

    def __init__(
        self, kernel_size: int = 5, k: float = 2.0, alpha: float = 1e-4, beta: float = 0.75, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.kernel_size, self.k, self.alpha, self.beta = kernel_size, k, alpha, beta

    def forward(self, inp: Tensor) -> Tensor:
        """[N,C,H,W], same out."""
        return F.local_response_norm(inp, self.kernel_size, self.k, self.alpha, self.beta)
