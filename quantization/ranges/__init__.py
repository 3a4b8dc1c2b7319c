"""Ranges: batches of data, what was seen of a tensor, and the scale and zero point that follow from it."""

from megengine.quantization.ranges.batches import (
    Batch,
    Progress,
    as_batches,
    items_of,
    require_repeatable,
    sample_number,
    samples_of,
    shape_remedy,
    watched,
)
from megengine.quantization.ranges.files import Statistics
from megengine.quantization.ranges.keys import keys_of_inputs, values_in_order
from megengine.quantization.ranges.methods import METHODS, RangeMethod, activation_dtype, dtype_of_values, weight_dtype
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
from megengine.quantization.ranges.rows import Data, as_samples, stream, told_by_sample
from megengine.quantization.ranges.scales import SCHEMES, SMALLEST_SCALE, quantized_dtype, scheme
from megengine.quantization.ranges.statistics import Histogram, TensorStatistics
from megengine.traced_module.interpret import as_tensors
from megengine.traced_module.opening import takes_rows
