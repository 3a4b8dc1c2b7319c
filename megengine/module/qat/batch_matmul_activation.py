"""QAT products of batches of matrices, at MegEngine's place for them."""

from megengine.quantization.qat_modules import CLASSES

BatchMatMulActivation = CLASSES["BatchMatMulActivation"]
