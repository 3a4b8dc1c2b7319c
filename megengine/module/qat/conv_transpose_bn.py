"""QAT layers, at MegEngine's place for them."""

from megengine.quantization.modules.qat_modules import CLASSES

ConvTransposeBn2d = CLASSES["ConvTransposeBn2d"]
ConvTransposeBnRelu2d = CLASSES["ConvTransposeBnRelu2d"]
