"""QAT layers, by MegEngine's names."""

from megengine.module.qat.batch_matmul_activation import BatchMatMulActivation
from megengine.module.qat.concat import Concat
from megengine.module.qat.conv import Conv2d, ConvRelu2d, ConvTranspose2d, ConvTransposeRelu2d
from megengine.module.qat.conv_bn import ConvBn2d, ConvBnRelu2d
from megengine.module.qat.conv_transpose_bn import ConvTransposeBn2d, ConvTransposeBnRelu2d
from megengine.module.qat.elemwise import Elemwise
from megengine.module.qat.linear import Linear, LinearRelu
from megengine.module.qat.linear_bn import LinearBn1d, LinearBnRelu1d
from megengine.module.qat.module import QATModule
from megengine.module.qat.quant_dequant import DequantStub, QuantStub

__all__ = [
    "BatchMatMulActivation",
    "Concat",
    "Conv2d",
    "ConvBn2d",
    "ConvBnRelu2d",
    "ConvRelu2d",
    "ConvTranspose2d",
    "ConvTransposeBn2d",
    "ConvTransposeBnRelu2d",
    "ConvTransposeRelu2d",
    "DequantStub",
    "Elemwise",
    "Linear",
    "LinearBn1d",
    "LinearBnRelu1d",
    "LinearRelu",
    "QATModule",
    "QuantStub",
]
