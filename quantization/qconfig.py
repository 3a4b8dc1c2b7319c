"""MegEngine's path of QConfig and its presets."""

from megengine.quantization.modules.fake_quant import TQT as TQT
from megengine.quantization.modules.fake_quant import FakeQuantize as FakeQuantize
from megengine.quantization.modules.qconfigs import QConfig as QConfig
from megengine.quantization.modules.qconfigs import calibration_qconfig as calibration_qconfig
from megengine.quantization.modules.qconfigs import easyquant_qconfig as easyquant_qconfig
from megengine.quantization.modules.qconfigs import ema_fakequant_qconfig as ema_fakequant_qconfig
from megengine.quantization.modules.qconfigs import ema_lowbit_fakequant_qconfig as ema_lowbit_fakequant_qconfig
from megengine.quantization.modules.qconfigs import min_max_fakequant_qconfig as min_max_fakequant_qconfig
from megengine.quantization.modules.qconfigs import passive_qconfig as passive_qconfig
from megengine.quantization.modules.qconfigs import per_channel_fakequant_qconfig as per_channel_fakequant_qconfig
from megengine.quantization.modules.qconfigs import sync_ema_fakequant_qconfig as sync_ema_fakequant_qconfig
from megengine.quantization.modules.qconfigs import tqt_qconfig as tqt_qconfig
from megengine.quantization.ranges.observers import ExponentialMovingAverageObserver as ExponentialMovingAverageObserver
from megengine.quantization.ranges.observers import HistogramObserver as HistogramObserver
from megengine.quantization.ranges.observers import MinMaxObserver as MinMaxObserver
from megengine.quantization.ranges.observers import PassiveObserver as PassiveObserver
from megengine.quantization.ranges.observers import (
    SyncExponentialMovingAverageObserver as SyncExponentialMovingAverageObserver,
)
from megengine.quantization.ranges.observers import SyncMinMaxObserver as SyncMinMaxObserver
