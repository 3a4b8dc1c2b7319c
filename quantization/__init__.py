"""Quantization: a pipeline of graph transforms.

canonicalize -> annotate -> calibrate -> freeze -> materialize -> fold -> integerize
"""

if __name__ != "megengine.quantization":
    raise ImportError("import megengine.quantization, not quantization: a second copy has classes of its own")

import functools
import types

from megengine.core import absent
from megengine.quantization.checks.analysis import Analysis, EdgeReport, analyze
from megengine.quantization.checks.audit import Risk, audit
from megengine.quantization.checks.findings import Finding, diagnose
from megengine.quantization.checks.likeness import Likeness, likeness
from megengine.quantization.checks.sensitivity import Sensitivity, sensitivity
from megengine.quantization.checks.verify import VerifyResult, verify
from megengine.quantization.fake_quant import LSQ, TQT, FakeQuantize
from megengine.quantization.modules import file_objects
from megengine.quantization.observer import (
    ExponentialMovingAverageObserver,
    HistogramObserver,
    MinMaxObserver,
    Observer,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
)
from megengine.quantization.pipeline.advice import Advice, advise
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.collect import collect
from megengine.quantization.pipeline.config import EFFORTS, QuantConfig
from megengine.quantization.pipeline.graph_qat import QATGraph, prepare_qat
from megengine.quantization.pipeline.imported import integer_network
from megengine.quantization.pipeline.preview import Preview, preview
from megengine.quantization.pipeline.profiles import PROFILES, Profile
from megengine.quantization.pipeline.quantize import QuantizedModel, quantize_model, requantize
from megengine.quantization.pipeline.report import FloatOp, QuantReport
from megengine.quantization.pipeline.search import Budget, Point, SearchResult, search, stored_bytes
from megengine.quantization.pipeline.search_latency import LatencyTable
from megengine.quantization.pipeline.selection import PRECISIONS, LayerRule, Precision, select
from megengine.quantization.pipeline.to_half import to_half
from megengine.quantization.qconfig import (
    QConfig,
    calibration_qconfig,
    easyquant_qconfig,
    ema_fakequant_qconfig,
    ema_lowbit_fakequant_qconfig,
    min_max_fakequant_qconfig,
    passive_qconfig,
    per_channel_fakequant_qconfig,
    sync_ema_fakequant_qconfig,
    tqt_qconfig,
)
from megengine.quantization.quantize import (
    apply_easy_quant,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
    hook_qat_module,
    propagate_qconfig,
    quantize,
    quantize_qat,
    reset_qconfig,
)
from megengine.quantization.ranges.files import Statistics
from megengine.quantization.ranges.methods import RangeMethod
from megengine.quantization.ranges.statistics import Histogram, TensorStatistics
from megengine.quantization.utils import (
    LSQParams,
    QParams,
    QuantMode,
    create_qparams,
    fake_quant_bias,
    fake_quant_tensor,
)

file_objects.register()

__all__ = sorted(
    name for name in dir() if not name.startswith("_") and not isinstance(globals()[name], types.ModuleType)
)

__getattr__ = functools.partial(absent.part_or_error, __name__)
