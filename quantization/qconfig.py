"""MegEngine's path of QConfig and its presets."""

from megengine.quantization.modules.fake_quant import TQT, FakeQuantize
from megengine.quantization.modules.qconfigs import (
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
from megengine.quantization.ranges.observers import (
    ExponentialMovingAverageObserver,
    HistogramObserver,
    MinMaxObserver,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
)

__all__ = [
    "ExponentialMovingAverageObserver",
    "FakeQuantize",
    "HistogramObserver",
    "MinMaxObserver",
    "PassiveObserver",
    "QConfig",
    "SyncExponentialMovingAverageObserver",
    "SyncMinMaxObserver",
    "TQT",
    "calibration_qconfig",
    "easyquant_qconfig",
    "ema_fakequant_qconfig",
    "ema_lowbit_fakequant_qconfig",
    "min_max_fakequant_qconfig",
    "passive_qconfig",
    "per_channel_fakequant_qconfig",
    "sync_ema_fakequant_qconfig",
    "tqt_qconfig",
]
