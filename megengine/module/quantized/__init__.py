"""Quantized layers, by MegEngine's names."""

from megengine.module.quantized.batch_matmul_activation import BatchMatMulActivation
from megengine.module.quantized.concat import Concat
from megengine.module.quantized.conv import Conv2d, ConvRelu2d, ConvTranspose2d, ConvTransposeRelu2d
from megengine.module.quantized.conv_bn import ConvBn2d, ConvBnRelu2d
from megengine.module.quantized.conv_transpose_bn import ConvTransposeBn2d, ConvTransposeBnRelu2d
from megengine.module.quantized.elemwise import Elemwise
from megengine.module.quantized.linear import Linear, LinearRelu
from megengine.module.quantized.linear_bn import LinearBn1d, LinearBnRelu1d
from megengine.module.quantized.module import QuantizedModule
from megengine.module.quantized.quant_dequant import DequantStub, QuantStub

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
    "QuantStub",
    "QuantizedModule",
]
