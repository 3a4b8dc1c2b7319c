"""Marks of where quantization begins and ends."""

from __future__ import annotations

from megengine.module.module import Module
from megengine.tensor import Tensor


class QuantStub(Module):
    """Marks where the input is quantized; in a float model the input itself."""

    def forward(self, inp: Tensor) -> Tensor:
        """Any shape, same out."""
        return inp


class DequantStub(Module):
    """Marks where the result is dequantized; in a float model the input itself."""

    def forward(self, inp: Tensor) -> Tensor:
        """Any shape, same out."""
        return inp
