"""Weights that learn whether to round down or up, against exhaustive search, and networks that are rounded so."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quant_nets import concat_net, gated_net, residual_net, transposed_net

from megengine.quantization import QuantConfig, quantize_model, requantize, verify
from megengine.quantization.pipeline import adaround as adaround_module
from megengine.quantization.pipeline.adaround import SoftRounding, adaround
from tests.helpers.frozen_numbers import same

NETS = {"residual": residual_net, "concat": concat_net, "transposed": transposed_net, "gated": gated_net}
LEARNED = QuantConfig(precision="w4a8", rounding="adaround")


def products(rng, width, groups=1):
    x = rng.normal(size=(groups, 3 * width, width)) @ rng.normal(size=(groups, width, width))
    return np.einsum("gni,gnj->gij", x, x) / (3 * width)


def error(integers, steps, c):
    e = integers - steps
    return np.einsum("gri,gij,grj->gr", e, c, e)


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.integers(1, 6))
def test_weights_learn_nearly_the_best_of_both_directions(seed, width):
    rng = np.random.default_rng(seed)
    c, steps = products(rng, width), rng.uniform(-3.4, 3.4, (1, 4, width))
    c += 0.01 * np.trace(c[0]) / width * np.eye(width)
    nearest = np.clip(np.rint(steps), -3, 3)
    chosen = adaround(steps, c, -3, 3, nearest)
    assert (error(chosen, steps, c) <= error(nearest, steps, c) * (1 + 1e-9)).all()
    directions = np.array(list(itertools.product((0, 1), repeat=width)))
    best = np.min([error(np.clip(np.floor(steps) + one, -3, 3), steps, c) for one in directions], axis=0)
    assert error(chosen, steps, c).mean() <= 4 * best.mean() + 1e-12


def test_groups_learn_apart():
    rng = np.random.default_rng(0)
    c, steps = products(rng, 24, groups=3), rng.uniform(-7, 7, (3, 5, 24))
    whole = adaround(steps, c, -8, 7, np.rint(steps))
    alone = [adaround(steps[i : i + 1], c[i : i + 1], -8, 7, np.rint(steps[i : i + 1])) for i in range(3)]
    np.testing.assert_array_equal(whole, np.concatenate(alone))
    assert error(whole, steps, c).sum() < 0.7 * error(np.rint(steps), steps, c).sum()
    assert np.abs(whole - steps).max() < 1


def test_weights_start_real_and_end_as_integers():
    steps = np.random.default_rng(0).uniform(-10, 9, (6, 7)).astype(np.float32)
    weights = SoftRounding(steps, -8, 7, total=200)
    np.testing.assert_allclose(weights.soft(), np.clip(steps, -8, 7), atol=1e-5)
    for _ in range(200):
        weights.learn(np.zeros_like(steps))
    np.testing.assert_array_equal(weights.soft(), weights.integers())
    inside = (steps > -8) & (steps < 7) & (np.abs(steps - np.floor(steps) - 0.5) > 0.01)
    np.testing.assert_array_equal(weights.integers()[inside], np.rint(steps)[inside])


def test_the_gradient_of_the_regularizer_is_its_difference():
    weights = SoftRounding(np.array([0.2, 0.6, 0.9], np.float32), -8, 7, total=100)
    weights.done, h, beta, d = 100, np.array([0.2, 0.6, 0.9]), 2.0, 1e-5

    def value(x):
        return 12.0 * (1 - np.abs(2 * x - 1) ** beta)

    np.testing.assert_allclose(weights._pull(h), (value(h + d) - value(h - d)) / (2 * d), rtol=1e-4)


@pytest.mark.parametrize("net", NETS)
def test_networks_are_exact_and_the_order_of_data_makes_no_difference(net, monkeypatch):
    monkeypatch.setattr(adaround_module, "STEPS", 50)
    b, graph = NETS[net]()
    data = b.data(18)
    model = quantize_model(graph, data, LEARNED)
    assert model.config.rounding == "adaround"
    assert verify(model, b.data(1, seed=7)).exact
    assert same(model.frozen, quantize_model(graph, data[::-1], LEARNED).frozen)


def test_a_network_is_rounded_again(monkeypatch):
    monkeypatch.setattr(adaround_module, "STEPS", 50)
    b, graph = residual_net()
    seen = []
    model = quantize_model(graph, b.data(4), QuantConfig(precision="w4a8"))
    again = requantize(model, LEARNED, b.data(4), progress=lambda *words: seen.append(words))
    assert any((one.values != model.frozen.weights[name].values).any() for name, one in again.frozen.weights.items())
    turns = [words for words in seen if words[0] == "adaround"]
    assert turns == [("adaround", at, len(turns)) for at in range(1, len(turns) + 1)]
