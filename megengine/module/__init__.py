"""Layers, each in the file where MegEngine has it: traces and files name them by these paths."""

from typing import Any

from megengine.core import absent, exports, late
from megengine.module import init
from megengine.module.activation import (
    GELU,
    HSigmoid,
    HSwish,
    LeakyReLU,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Tanh,
)
from megengine.module.adaptive_pooling import AdaptiveAvgPool2d, AdaptiveMaxPool2d
from megengine.module.batch_matmul_activation import BatchMatMulActivation
from megengine.module.batchnorm import BatchNorm1d, BatchNorm2d, SyncBatchNorm
from megengine.module.concat import Concat
from megengine.module.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvRelu2d,
    ConvTranspose2d,
    ConvTranspose3d,
    ConvTransposeRelu2d,
    DeformableConv2d,
    LocalConv2d,
    RegionRestrictedConv,
)
from megengine.module.conv_bn import ConvBn2d, ConvBnRelu2d
from megengine.module.conv_transpose_bn import ConvTransposeBn2d, ConvTransposeBnRelu2d
from megengine.module.deformable_psroi_pooling import DeformablePSROIPooling
from megengine.module.dropout import Dropout
from megengine.module.elemwise import Elemwise
from megengine.module.embedding import Embedding
from megengine.module.identity import Identity
from megengine.module.linear import Linear, LinearRelu
from megengine.module.linear_bn import LinearBn1d, LinearBnRelu1d
from megengine.module.lrn import LocalResponseNorm
from megengine.module.module import Module
from megengine.module.multiheadattn import MultiHeadAttention
from megengine.module.normalization import GeneralNorm, GroupNorm, InstanceNorm, LayerNorm
from megengine.module.padding import Pad
from megengine.module.pixel_shuffle import PixelShuffle
from megengine.module.pooling import AvgPool2d, MaxPool2d
from megengine.module.quant_dequant import DequantStub, QuantStub
from megengine.module.rnn import GRU, LSTM, RNN, GRUCell, LSTMCell, RNNCell
from megengine.module.sequential import Sequential
from megengine.module.sliding_window import SlidingWindow, SlidingWindowTranspose

__all__ = [name for name in dir() if not name.startswith("_") and name not in ("Any", "absent", "exports", "late")]
exports.limit_stars(__name__)


def __getattr__(name: str) -> Any:
    """`qat` and `quantized` are imported when they are first named."""
    if name in ("qat", "quantized") and late.ensure(f"megengine.module.{name}.") and name in globals():
        return globals()[name]
    raise absent.missing(__name__, name)
