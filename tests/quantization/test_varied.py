"""Samples in less contrast beside those that calibrate."""

import numpy as np
from quant_nets import Builder, residual_net

from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.quantization.pipeline import distill as distillation
from megengine.quantization.pipeline.varied import CONTRAST, takes_pictures, varied, with_variety
from tests.helpers.frozen_numbers import same


def test_a_blend_keeps_the_order_of_values_and_their_range():
    rng = np.random.default_rng(0)
    for _ in range(20):
        x = rng.normal(size=(1, 3, 4, 4)).astype(np.float32)
        (y,) = varied((x,))
        assert y.dtype == x.dtype and y.shape == x.shape
        slope, constant = np.polyfit(x.reshape(-1).astype(np.float64), y.reshape(-1).astype(np.float64), 1)
        assert CONTRAST[0] - 1e-5 <= slope <= CONTRAST[1] + 1e-5
        np.testing.assert_allclose(y, slope * x + constant, atol=1e-5)
        assert x.min() - 1e-5 <= y.min() and y.max() <= x.max() + 1e-5
        np.testing.assert_array_equal(varied((x.copy(),))[0], y)
    (empty,) = varied((np.zeros((1, 0), np.float32),))
    assert empty.shape == (1, 0)


def test_half_of_the_samples_are_varied_at_even_and_odd_places_alike():
    b, graph = residual_net()
    samples = [(x,) for x in b.data(8)]
    found = with_variety(samples, graph)
    assert [at for at, one in enumerate(found) if one is not samples[at]] == [2, 3, 6, 7]
    np.testing.assert_array_equal(found[2][0], varied(samples[2])[0])


def test_inputs_that_are_no_pictures_stay():
    b = Builder((1, 8))
    graph = b.done(b.linear(b.x, 4))
    assert not takes_pictures(graph)
    samples = [(x,) for x in b.data(3)]
    assert with_variety(samples, graph) == samples


def test_networks_learn_from_varied_pictures_and_are_exact(monkeypatch):
    seen = []
    lesson = distillation._lesson
    monkeypatch.setattr(distillation, "_lesson", lambda graph, x, *more: seen.append(x) or lesson(graph, x, *more))
    b, graph = residual_net()
    data = b.data(20)
    config = QuantConfig.of("best", precision="w4a8", distillation=1)
    assert config.vary
    model = quantize_model(graph, data, config)
    known = {x.tobytes() for x in data}
    new = [x for (x,) in seen if x.tobytes() not in known]
    assert len(new) == 4 + 8  # all that are held out, and half of the others
    assert verify(model, b.data(1, seed=7)).exact
    assert same(model.frozen, quantize_model(graph, data[::-1], config).frozen)


def test_weights_of_eight_bits_learn_from_the_data_alone():
    b, graph = residual_net()
    data, config = b.data(20), QuantConfig.of("best", distillation=1)
    plain = quantize_model(graph, data, config.changed(vary=False))
    assert same(quantize_model(graph, data, config).frozen, plain.frozen)
