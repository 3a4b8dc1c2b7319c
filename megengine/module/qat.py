"""Quantization-aware modules, by MegEngine's place for them."""

from megengine.quantization.qat import QATModule

__all__ = ["QATModule"]
