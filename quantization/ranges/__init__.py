"""Ranges: batches of data, what was seen of a tensor, and the scale and zero point that follow from it."""

from megengine.quantization.ranges.batches import (
    Batch,
    Progress,
    as_batches,
    as_tensors,
    items_of,
    require_repeatable,
    sample_number,
    samples_of,
    shape_remedy,
    watched,
)
from megengine.quantization.ranges.files import Statistics
from megengine.quantization.ranges.methods import METHODS, RangeMethod, activation_dtype, weight_dtype
from megengine.quantization.ranges.observers import (
    ExponentialMovingAverageObserver,
    HistogramObserver,
    MinMaxObserver,
    Observer,
    PassiveObserver,
    SyncExponentialMovingAverageObserver,
    SyncMinMaxObserver,
)
from megengine.quantization.ranges.qparams import LSQParams, QParams, QParamsModuleMixin, QuantMode, at, create_qparams
from megengine.quantization.ranges.rows import Data, as_samples, stream, takes_rows
from megengine.quantization.ranges.scales import SCHEMES, quantized_dtype, scheme
from megengine.quantization.ranges.statistics import Histogram, TensorStatistics
