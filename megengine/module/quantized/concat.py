"""Quantized layers, at MegEngine's place for them."""

from megengine.quantization.modules.int_modules import CLASSES

Concat = CLASSES["Concat"]
