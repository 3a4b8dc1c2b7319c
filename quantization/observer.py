"""MegEngine's path of the observers."""

from megengine.core.tensor.dtype import QuantDtypeMeta
from megengine.quantization.ranges.observers import (
    ExponentialMovingAverageObserver,
    HistogramObserver,
    MinMaxObserver,
    Observer,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
)
from megengine.quantization.ranges.qparams import QParams, QParamsModuleMixin, QuantMode, create_qparams

__all__ = [
    "QuantDtypeMeta",
    "ExponentialMovingAverageObserver",
    "HistogramObserver",
    "MinMaxObserver",
    "Observer",
    "PassiveObserver",
    "QParams",
    "QParamsModuleMixin",
    "QuantMode",
    "SyncExponentialMovingAverageObserver",
    "SyncMinMaxObserver",
    "create_qparams",
]
