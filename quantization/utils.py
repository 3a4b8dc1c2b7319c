"""MegEngine's path of quantization parameters, and of fake quantization as functions."""

from megengine.core.tensor.dtype import QuantDtypeMeta, create_quantized_dtype
from megengine.quantization.modules.rounding import (
    Round,
    fake_quant_bias,
    fake_quant_tensor,
    lsq_forward,
    register_method_to_class,
    tqt_forward,
)
from megengine.quantization.ranges.qparams import LSQParams, QParams, QParamsModuleMixin, QuantMode, create_qparams

__all__ = [
    "QuantDtypeMeta",
    "create_quantized_dtype",
    "LSQParams",
    "QParams",
    "QParamsModuleMixin",
    "QuantMode",
    "Round",
    "create_qparams",
    "fake_quant_bias",
    "fake_quant_tensor",
    "lsq_forward",
    "register_method_to_class",
    "tqt_forward",
]
