"""Functions on quantized tensors, at MegEngine's place for them."""

from megengine.quantization.modules.functional import batch_conv_bias_activation, conv_bias_activation, conv_transpose2d

__all__ = [f.__name__ for f in (batch_conv_bias_activation, conv_bias_activation, conv_transpose2d)]
