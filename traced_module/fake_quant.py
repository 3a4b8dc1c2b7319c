"""MegEngine's path of fake quantizers in graphs: here they are those of `megengine.quantization`."""

from megengine.quantization.modules.fake_quant import FakeQuantize as FakeQuantize
