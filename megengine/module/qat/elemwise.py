"""QAT layers, at MegEngine's place for them."""

from megengine.quantization.modules.qat_modules import CLASSES

Elemwise = CLASSES["Elemwise"]
