"""QAT layers, at MegEngine's place for them."""

from megengine.quantization.modules.qat_modules import CLASSES

LinearBn1d = CLASSES["LinearBn1d"]
LinearBnRelu1d = CLASSES["LinearBnRelu1d"]
