"""Recurrent layers over floats on the emulated GPU, beside the reference."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import qint8
from megengine.dispatch import get_op
from megengine.kernels.reference.recurrent import FUNCTIONS_OF, GATES, PARAMETERS
from megengine.ops.recurrent import DIRECTIONS, OPTIONAL, recurrent_attrs

SAMPLES = list(get_op("recurrent").samples())


def layer(cell, direction="forward", given=(), size=(3, 2, 4, 5), dtype=np.float32, **attrs):
    """Inputs and attributes of a layer."""
    t, n, features, hidden = size
    d, rows = DIRECTIONS[direction], GATES[cell] * hidden
    rng = np.random.default_rng(size)
    noise = lambda *shape: rng.normal(0, 0.5, shape).astype(dtype)  # noqa: E731
    arrays = {
        "bias": noise(d, 2 * rows),
        "lengths": np.array([t, t // 2, *[1] * n][:n], np.int32),
        "h": noise(d, n, hidden),
        "c": noise(d, n, hidden),
        "peepholes": noise(d, 3 * hidden),
    }
    inputs = (noise(t, n, features), noise(d, rows, features), noise(d, rows, hidden), *(arrays[g] for g in given))
    return inputs, recurrent_attrs(cell, direction, given, **attrs)


def check(inputs, attrs, gpu=None):
    size = 1e-12 if inputs[0].dtype == np.float64 else 1e-5
    if attrs["state"] is not None:  # a rounded state is another integer where sums differ in their last bits
        size = 2 * attrs["state"].only_scale
    found = on_gpu("recurrent", inputs, attrs, gpu=gpu)
    same(found, by_reference("recurrent", inputs, attrs), rtol=size, atol=size)
    return found


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", range(len(SAMPLES)))
def test_samples(number, dtype):
    sample = SAMPLES[number]
    check([narrowed(v, dtype) for v in sample.inputs], sample.attrs)


@pytest.mark.parametrize("cell", FUNCTIONS_OF)
def test_activations(cell):
    count = len(FUNCTIONS_OF[cell])
    for name in PARAMETERS:
        attrs = {"activations": (name,) * count, "alphas": (0.3,) * count, "betas": (0.7,) * count}
        check(*layer(cell, **attrs, clip=0.4))
        check(*layer(cell, **attrs))


@pytest.mark.parametrize("before", [False, True])
def test_tiles(before):
    """More samples than a warp takes; lengths, states, directions, places that are no whole tile."""
    for n, hidden in ((5, 33), (33, 7), (32, 32)):
        check(*layer("lstm", "bidirectional", OPTIONAL, size=(3, n, 3, hidden), input_forget=before))
        check(*layer("gru", "bidirectional", OPTIONAL[:3], size=(3, n, 3, hidden), linear_before_reset=before))
    check(*layer("rnn", "reverse", ("h",), size=(2, 6, 3, 9)))


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_threads(order):
    gpu = EmulatedGpu(order=order)
    for n in (2, 5):
        check(*layer("gru", "reverse", ("h",), size=(2, n, 3, 35)), gpu)
    kernels = {kernel for _, kernel in gpu.launched}
    assert {"cuda_recurrent_warps", "cuda_recurrent_tiles"} <= kernels


@pytest.mark.parametrize("size", [(0, 2, 3, 4), (1, 1, 1, 1), (2, 0, 3, 4), (1, 9, 0, 7), (2, 3, 4, 0)])
def test_sizes(size):
    check(*layer("lstm", size=size))
    check(*layer("gru", "bidirectional", ("h",), size=size))


def test_no_length_is_beyond_a_step():
    """A sample of no steps keeps its first state, and its results are zeros."""
    inputs, attrs = layer("lstm", given=("lengths", "h", "c"), size=(2, 3, 3, 4))
    inputs = (*inputs[:3], np.array([0, 2, 1], np.int32), *inputs[4:])
    y, h, c = check(inputs, attrs)
    assert not y[:, 0, 0].any()
    np.testing.assert_array_equal(h[0, 0], inputs[4][0, 0])
    np.testing.assert_array_equal(c[0, 0], inputs[5][0, 0])


def test_rounded_states():
    """Where every state is a multiple of the step, products of rounded states are those of the states."""
    state = qint8(1 / 64, 3)
    inputs, attrs = layer("rnn", given=("h",), size=(1, 2, 3, 5))
    grid = (*inputs[:3], np.round(np.clip(inputs[3], -1, 1) * 64).astype(np.float32) / 64)
    same(on_gpu("recurrent", grid, {**attrs, "state": state}), on_gpu("recurrent", grid, attrs))
    off = (*grid[:3], grid[3] + np.float32(0.3 / 64))
    same(on_gpu("recurrent", off, {**attrs, "state": state}), on_gpu("recurrent", grid, attrs))
    assert (on_gpu("recurrent", off, attrs)[0] != on_gpu("recurrent", grid, attrs)[0]).any()
