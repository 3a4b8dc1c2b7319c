"""Recurrent layers with integer products on the emulated GPU equal the reference in every bit."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import qint8, quantized, quint8
from megengine.dispatch import get_op
from megengine.kernels.reference.recurrent import FUNCTIONS_OF, GATES, PARAMETERS
from megengine.ops.recurrent import DIRECTIONS, recurrent_attrs

f32 = np.float32
SAMPLES = list(get_op("qrecurrent").samples())


def layer(cell, direction="forward", given=(), size=(3, 2, 5), dtype=None, **attrs):
    """Inputs and attributes of a layer whose sums are not small."""
    t, n, hidden = size
    d, rows = DIRECTIONS[direction], DIRECTIONS[direction] * GATES[cell] * hidden
    rng = np.random.default_rng(size)
    arrays = {"bias": rng.normal(0, 1, (d, hidden)).astype(f32), "lengths": np.array([t, t // 2, 0][:n], np.int32),
              "h": rng.normal(0, 1, (d, n, hidden)).astype(f32), "c": rng.normal(0, 1, (d, n, hidden)).astype(f32),
              "peepholes": rng.normal(0, 1, (d, 3 * hidden)).astype(f32)}  # fmt: skip
    inputs = [rng.normal(0, 2, (t, n, rows)).astype(f32), rng.integers(-128, 128, (rows, hidden)).astype(np.int8),
              (rng.random(rows) / 1000).astype(f32), *(arrays[name] for name in given)]  # fmt: skip
    options = {k: v for k, v in recurrent_attrs(cell, direction, given, **attrs).items() if k != "state"}
    return inputs, options | {"dtype": dtype or qint8(0.01, 5)}


def check(inputs, attrs, order=ORDERS[0]):
    same(on_gpu("qrecurrent", inputs, attrs, gpu=EmulatedGpu(order=order)), by_reference("qrecurrent", inputs, attrs))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_samples(sample, order):
    check([narrowed(v) for v in sample.inputs], sample.attrs, order)


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("cell", FUNCTIONS_OF)
def test_activations(cell, name):
    count = len(FUNCTIONS_OF[cell])
    attrs = {"activations": (name,) * count, "alphas": (0.3,) * count, "betas": (0.7,) * count}
    check(*layer(cell, **attrs, clip=1.5))
    check(*layer(cell, **attrs))


@pytest.mark.parametrize("before", [False, True])
def test_states_and_lengths(before):
    given = ("lengths", "h", "c", "peepholes")
    check(*layer("lstm", "bidirectional", given, size=(4, 3, 33), dtype=quint8(0.01, 128), input_forget=before))
    names = ("bias", "lengths", "h") if before else ("lengths", "h")
    check(*layer("gru", "bidirectional", names, size=(4, 3, 33), linear_before_reset=before))


@pytest.mark.parametrize("size", [(0, 2, 4), (1, 1, 1), (2, 0, 3), (1, 9, 7)])
def test_sizes(size):
    check(*layer("lstm", size=size))


def test_results_of_16_bits():
    check(*layer("gru", dtype=quantized("qint16", 1e-4), linear_before_reset=True))
