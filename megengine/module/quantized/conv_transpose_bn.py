"""Quantized layers, at MegEngine's place for them."""

from megengine.quantization.modules.int_modules import CLASSES

ConvTransposeBn2d = CLASSES["ConvTransposeBn2d"]
ConvTransposeBnRelu2d = CLASSES["ConvTransposeBnRelu2d"]
