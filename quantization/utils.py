"""MegEngine's path of quantization parameters, and of fake quantization as functions."""

from megengine.core.tensor.dtype import QuantDtypeMeta as QuantDtypeMeta
from megengine.core.tensor.dtype import create_quantized_dtype as create_quantized_dtype
from megengine.quantization.modules.rounding import Round as Round
from megengine.quantization.modules.rounding import fake_quant_bias as fake_quant_bias
from megengine.quantization.modules.rounding import fake_quant_tensor as fake_quant_tensor
from megengine.quantization.modules.rounding import lsq_forward as lsq_forward
from megengine.quantization.modules.rounding import register_method_to_class as register_method_to_class
from megengine.quantization.modules.rounding import tqt_forward as tqt_forward
from megengine.quantization.ranges.qparams import LSQParams as LSQParams
from megengine.quantization.ranges.qparams import QParams as QParams
from megengine.quantization.ranges.qparams import QParamsModuleMixin as QParamsModuleMixin
from megengine.quantization.ranges.qparams import QuantMode as QuantMode
from megengine.quantization.ranges.qparams import create_qparams as create_qparams
