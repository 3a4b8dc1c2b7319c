"""MegEngine's path of the observers."""

from megengine.core.tensor.dtype import QuantDtypeMeta as QuantDtypeMeta
from megengine.quantization.ranges.observers import ExponentialMovingAverageObserver as ExponentialMovingAverageObserver
from megengine.quantization.ranges.observers import HistogramObserver as HistogramObserver
from megengine.quantization.ranges.observers import MinMaxObserver as MinMaxObserver
from megengine.quantization.ranges.observers import Observer as Observer
from megengine.quantization.ranges.observers import PassiveObserver as PassiveObserver
from megengine.quantization.ranges.observers import (
    SyncExponentialMovingAverageObserver as SyncExponentialMovingAverageObserver,
)
from megengine.quantization.ranges.observers import SyncMinMaxObserver as SyncMinMaxObserver
from megengine.quantization.ranges.qparams import QParams as QParams
from megengine.quantization.ranges.qparams import QParamsModuleMixin as QParamsModuleMixin
from megengine.quantization.ranges.qparams import QuantMode as QuantMode
from megengine.quantization.ranges.qparams import create_qparams as create_qparams
