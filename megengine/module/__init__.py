"""Layers."""

from megengine.module import init
from megengine.module.extra import (
    ConvTransposeBn2d,
    ConvTransposeBnRelu2d,
    ConvTransposeRelu2d,
    Embedding,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LinearBn1d,
    LinearBnRelu1d,
    LinearRelu,
    Pad,
    PixelShuffle,
    PReLU,
)
from megengine.module.layers import (
    GELU,
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Concat,
    Conv2d,
    ConvBn2d,
    ConvBnRelu2d,
    ConvRelu2d,
    ConvTranspose2d,
    DequantStub,
    Dropout,
    Elemwise,
    HSigmoid,
    HSwish,
    Identity,
    LeakyReLU,
    Linear,
    MaxPool2d,
    QuantStub,
    ReLU,
    ReLU6,
    Sequential,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from megengine.module.module import HookHandle, Module

__all__ = [name for name in dir() if not name.startswith("_")]
