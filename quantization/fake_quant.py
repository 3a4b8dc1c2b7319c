"""MegEngine's path of the modules that round values."""

from megengine.core.tensor.dtype import QuantDtypeMeta as QuantDtypeMeta
from megengine.quantization.modules.fake_quant import LSQ as LSQ
from megengine.quantization.modules.fake_quant import TQT as TQT
from megengine.quantization.modules.fake_quant import FakeQuantize as FakeQuantize
from megengine.quantization.modules.fake_quant import _FakeQuantize as _FakeQuantize
from megengine.quantization.modules.rounding import fake_quant_tensor as fake_quant_tensor
from megengine.quantization.modules.rounding import lsq_forward as lsq_forward
from megengine.quantization.modules.rounding import tqt_forward as tqt_forward
from megengine.quantization.ranges.qparams import LSQParams as LSQParams
from megengine.quantization.ranges.qparams import QParams as QParams
from megengine.quantization.ranges.qparams import QParamsModuleMixin as QParamsModuleMixin
from megengine.quantization.ranges.qparams import QuantMode as QuantMode
from megengine.quantization.ranges.qparams import create_qparams as create_qparams
