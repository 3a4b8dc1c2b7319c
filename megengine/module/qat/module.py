"""The base class of the layers."""

from megengine.quantization.modules.qat_modules import QATModule

__all__ = ["QATModule"]
