"""Channels of normalised values that are scaled between gains and linear layers."""

import numpy as np
import pytest
from quant_nets import Builder, run, sqnr

from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.smooth import scaled_values, smoothed
from megengine.traced_module.ir.expr import Apply

WIDTH = 16
UNEVEN = np.where(np.arange(WIDTH) % 8 == 3, 40.0, 1.0).astype(np.float32)


def normed_net(*, shift=True, turned=True, gain=UNEVEN, also=None):
    """A norm with uneven gains, and two layers that read it; `also` makes another reader."""
    b = Builder((2, 6, WIDTH))
    centred = b.op("sub", b.x, b.op("mean", b.x, axis=(2,), keepdims=True))
    power = b.op("mean", b.op("square", centred), axis=(2,), keepdims=True)
    small = b.g.constant(np.float32(1e-5))
    y = b.op("mul", b.op("div", centred, b.op("sqrt", b.op("add", power, small))), b.g.constant(gain), label="gain")
    y = b.op("add", y, b.constant((WIDTH,)), label="norm") if shift else y
    shape = (WIDTH, 8) if turned else (8, WIDTH)
    ends = [
        b.op("matmul", y, b.constant(shape), transpose_a=False, transpose_b=not turned, label=label)
        for label in ("left", "right")
    ]
    return b, b.done(*ends, *([also(b, y)] if also else []))


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("shift", [True, False])
def test_smoothed_networks_compute_what_they_did_with_less_noise(shift, turned):
    b, g = normed_net(shift=shift, turned=turned)
    plain = quantize_model(g, b.data(8), QuantConfig())
    even, places = smoothed(plain.float_graph, plain.stats, plain.annotation)
    assert places == 1
    x = b.data(1, seed=7)[0]
    for expected, got in zip(run(plain.float_graph, x), run(even, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
    model = quantize_model(g, b.data(8), QuantConfig(smooth=True))
    before, after = (sqnr(run(g, x)[0], run(one.integer_graph, x)[0]) for one in (plain, model))
    assert after > before + 2
    assert verify(model, [x]).exact


def test_even_channels_are_left():
    b, g = normed_net(gain=np.ones(WIDTH, np.float32))
    model = quantize_model(g, b.data(8), QuantConfig())
    assert smoothed(model.float_graph, model.stats, model.annotation)[1] == 0


@pytest.mark.parametrize(
    "also",
    [
        lambda b, y: b.op("sigmoid", y),
        lambda b, y: y,  # an output
        lambda b, y: b.op("matmul", y, y, transpose_a=False, transpose_b=True),
        lambda b, y: b.op("matmul", b.constant((6, 6)), y, transpose_a=False, transpose_b=False),
    ],
)
def test_values_that_others_read_are_left(also):
    _, g = normed_net(also=also)
    assert not list(scaled_values(canonicalize(g)))


def test_gains_of_other_axes_are_left():
    b = Builder((2, WIDTH, WIDTH))
    y = b.op("mul", b.x, b.constant((WIDTH, 1)))
    g = b.done(b.op("matmul", y, b.constant((WIDTH, 4)), transpose_a=False, transpose_b=False))
    assert not list(scaled_values(g))
    assert any(e.op == "mul" for e in g.exprs() if isinstance(e, Apply))
