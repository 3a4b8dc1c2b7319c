"""Finite values whose sums pass what float32 holds."""

import warnings

import numpy as np

from megengine.quantization.pipeline.bias import mean_error
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.quantization.ranges import TensorStatistics
from megengine.traced_module.editing.rewiring import set_input
from tests.helpers.quant_nets import Builder


def test_means_whose_sums_pass_float32_correct_nothing():
    b = Builder()
    y = b.conv(b.x, 4, label="layer")
    set_input(b.g, y.expr, 1, b.g.constant(100 * y.expr.inputs[1].expr.value.numpy(), before=y.expr))
    weight = quantize_model(b.done(y), b.data()).frozen.weights["layer"]
    seen = TensorStatistics("x", channel_axis=1, averaged=True)
    seen.update(np.full(b.x.shape, 3e38, np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert not mean_error(y.expr, seen, None, weight).any()
