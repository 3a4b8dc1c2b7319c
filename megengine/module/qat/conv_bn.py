"""QAT layers, at MegEngine's place for them."""

from megengine.quantization.modules.qat_modules import CLASSES

ConvBn2d = CLASSES["ConvBn2d"]
ConvBnRelu2d = CLASSES["ConvBnRelu2d"]
