"""The base class of the layers."""

from megengine.quantization.qat_modules import QATModule

__all__ = ["QATModule"]
