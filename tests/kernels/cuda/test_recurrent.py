"""Recurrent layers on the emulated GPU: the bits of the reference, whose sums have their order."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.dispatch import get_op
from megengine.ops.quantized import S8
from megengine.ops.recurrent import OPTIONAL, _sample

SAMPLES = list(get_op("recurrent").samples())


def matches(sample, dtype=np.float32, gpu=None, **tolerances):
    inputs = [narrowed(x, dtype) for x in sample.inputs]
    same(
        on_gpu("recurrent", inputs, sample.attrs, gpu=gpu),
        by_reference("recurrent", inputs, sample.attrs),
        **tolerances,
    )


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: f"{s.attrs['cell']}-{s.attrs['direction']}")
def test_samples(sample):
    matches(sample)


@pytest.mark.parametrize("sample", SAMPLES[:8], ids=lambda s: f"{s.attrs['cell']}-{s.attrs['direction']}")
def test_float64(sample):
    matches(sample, np.float64, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("size", [(1, 1, 1, 1), (2, 8, 16, 32), (2, 9, 17, 33), (3, 0, 4, 5), (2, 70, 15, 31)])
def test_sizes_around_the_blocks(cell, size):
    matches(_sample(cell, "bidirectional", OPTIONAL if cell == "lstm" else OPTIONAL[:3], size))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_order_of_threads(cell, order):
    matches(_sample(cell, "bidirectional", OPTIONAL[:3], (3, 9, 17, 33), state=S8), gpu=EmulatedGpu(order=order))
