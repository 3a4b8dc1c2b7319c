"""Layers of quantization-aware training and integer layers, by MegEngine's names, and the arithmetic of both."""

from megengine.quantization.modules.arithmetic import Product, accumulator_weight, first_axis, spread
from megengine.quantization.modules.fake_quant import _FakeQuantize
from megengine.quantization.modules.rounding import lsq_forward, tqt_forward
