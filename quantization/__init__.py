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
from megengine.quantization.ranges import RangeMethod
from megengine.quantization.statistics import Histogram, TensorStatistics

__all__ = [
    "PROFILES",
    "Analysis",
    "Annotation",
    "EdgeReport",
    "Histogram",
    "Profile",
    "QuantConfig",
    "QuantReport",
    "QuantizedModel",
    "RangeMethod",
    "TensorStatistics",
    "analyze",
    "annotate",
    "quantize_model",
    "requantize",
    "select",
]
