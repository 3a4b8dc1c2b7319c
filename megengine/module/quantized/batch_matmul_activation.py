"""Quantized products of batches of matrices, at MegEngine's place for them."""

from megengine.quantization.modules.int_modules import CLASSES

BatchMatMulActivation = CLASSES["BatchMatMulActivation"]
