"""Quantization: a pipeline of graph transforms.

fuse -> annotate -> observe -> calibrate -> freeze -> materialize -> fold -> lower
"""

if __name__ != "megengine.quantization":
    raise ImportError("import megengine.quantization, not quantization: a second copy has classes of its own")

from megengine.quantization.analysis import Analysis, EdgeReport, analyze
from megengine.quantization.annotate import Annotation, annotate
from megengine.quantization.config import QuantConfig, select
from megengine.quantization.model import QuantizedModel, QuantReport, quantize_model, requantize
from megengine.quantization.profiles import PROFILES, Profile
from megengine.quantization.qat import (
    QATModule,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    propagate_qconfig,
    quantize,
    quantize_qat,
    reset_qconfig,
)
from megengine.quantization.qconfig import (
    QConfig,
    calibration_qconfig,
    ema_fakequant_qconfig,
    min_max_fakequant_qconfig,
    passive_qconfig,
)
from megengine.quantization.ranges import RangeMethod
from megengine.quantization.statistics import Histogram, TensorStatistics
from megengine.quantization.verify import VerifyResult, verify

__all__ = [
    "PROFILES",
    "Analysis",
    "Annotation",
    "EdgeReport",
    "Histogram",
    "Profile",
    "QATModule",
    "QConfig",
    "QuantConfig",
    "QuantReport",
    "QuantizedModel",
    "RangeMethod",
    "TensorStatistics",
    "VerifyResult",
    "analyze",
    "annotate",
    "calibration_qconfig",
    "disable_fake_quant",
    "disable_observer",
    "ema_fakequant_qconfig",
    "enable_fake_quant",
    "enable_observer",
    "min_max_fakequant_qconfig",
    "passive_qconfig",
    "propagate_qconfig",
    "quantize",
    "quantize_model",
    "quantize_qat",
    "requantize",
    "reset_qconfig",
    "select",
    "verify",
]
