"""Quantized layers, at MegEngine's place for them."""

from megengine.quantization.modules.int_modules import CLASSES

Conv2d = CLASSES["Conv2d"]
ConvRelu2d = CLASSES["ConvRelu2d"]
ConvTranspose2d = CLASSES["ConvTranspose2d"]
ConvTransposeRelu2d = CLASSES["ConvTransposeRelu2d"]
