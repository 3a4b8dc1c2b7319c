"""MegEngine's path of the modules that round values."""

from megengine.core.tensor.dtype import QuantDtypeMeta
from megengine.quantization.modules.fake_quant import LSQ, TQT, FakeQuantize, _FakeQuantize
from megengine.quantization.modules.rounding import fake_quant_tensor, lsq_forward, tqt_forward
from megengine.quantization.ranges.qparams import LSQParams, QParams, QParamsModuleMixin, QuantMode, create_qparams

__all__ = [
    "QuantDtypeMeta",
    "FakeQuantize",
    "LSQ",
    "LSQParams",
    "QParams",
    "QParamsModuleMixin",
    "QuantMode",
    "TQT",
    "_FakeQuantize",
    "create_qparams",
    "fake_quant_tensor",
    "lsq_forward",
    "tqt_forward",
]
