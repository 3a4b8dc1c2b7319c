"""The base class of the layers."""

from megengine.quantization.int_modules import QuantizedModule

__all__ = ["QuantizedModule"]
