"""The base class of the layers."""

from megengine.quantization.modules.int_modules import QuantizedModule

__all__ = ["QuantizedModule"]
