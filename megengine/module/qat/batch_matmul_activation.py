"""QAT products of batches of matrices, at MegEngine's place for them."""

from megengine.quantization.modules.qat_modules import CLASSES

BatchMatMulActivation = CLASSES["BatchMatMulActivation"]
