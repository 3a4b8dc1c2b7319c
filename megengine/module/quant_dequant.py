"""Where quantization begins and ends."""

from __future__ import annotations

from megengine.module.identity import Identity


class QuantStub(Identity):
    """Marks where the input is quantized."""


class DequantStub(Identity):
    """Marks where the result is dequantized."""
