"""Judges: which samples they keep, the noise they tell, and a stage that is undone because it did harm."""

import math
from dataclasses import replace

import numpy as np
import pytest
from quant_nets import Builder, residual_net

from megengine.core.errors import QuantizationError
from megengine.plan import compile
from megengine.quantization import QuantConfig, collect, quantize_model, requantize
from megengine.quantization.checks import verify
from megengine.quantization.pipeline import refine
from megengine.quantization.pipeline.calibrate import calibrate, observe_all
from megengine.quantization.pipeline.integer_graph import integer_graphs
from megengine.quantization.pipeline.judging import HELD_OUT, SAMPLES, Judges


@pytest.fixture(scope="module")
def net():
    return residual_net()[1]


@pytest.fixture(scope="module")
def data(net):
    rng = np.random.default_rng(0)
    return [(rng.standard_normal(net.inputs[0].shape).astype(np.float32),) for _ in range(20)]


@pytest.fixture
def harm(monkeypatch):
    """Makes bias correction do harm."""
    real = refine.bias_corrected

    def shifted(*words):
        frozen = real(*words)
        return replace(frozen, biases={place: bias + np.float32(5) for place, bias in frozen.biases.items()})

    monkeypatch.setattr(refine, "bias_corrected", shifted)


def outputs(graph, data):
    compiled = compile(graph)
    return [np.array(compiled(*x)[0]) for x in data]


def test_the_same_samples_are_kept_in_any_order(net, data):
    kept = []
    for order in (range(20), range(19, -1, -1), [*range(20), *range(20)]):
        judges = Judges(net)
        for i in order:
            judges.look(data[i], {})
        kept.append([x.sum() for (x,) in judges.samples])
    assert kept[0] == kept[1] == kept[2] and len(set(kept[0])) == SAMPLES
    assert not Judges(net)


@pytest.mark.parametrize(("rounding", "count"), [("nearest", SAMPLES), ("gptq", SAMPLES), ("gptaq", HELD_OUT)])
def test_fewer_judge_where_they_are_missed_as_teachers(rounding, count, net, data, monkeypatch):
    seen, real = [], refine.rounded_in_turn
    monkeypatch.setattr(Judges, "noise", lambda judges, graph: seen.append(len(judges.samples)) or 1.0)
    taught = []
    monkeypatch.setattr(refine, "rounded_in_turn", lambda *a, **k: taught.append(len(a[3])) or real(*a, **k))
    quantize_model(net, [*data, *((x + 1,) for (x,) in data)], QuantConfig(rounding=rounding))
    assert set(seen) == {count}
    assert taught == ([2 * len(data) - HELD_OUT] if rounding == "gptaq" else [])


def test_noise_is_relative_to_the_power_of_the_outputs(net, data):
    judges, model = Judges(net), quantize_model(net, data, QuantConfig(bias_correction=False))
    for x in data[:5]:
        judges.look(x, {})
    exact, rounded = outputs(net, data[:5]), outputs(model.integer_graph, data[:5])
    noise = sum(((a.astype(np.float64) - b) ** 2).sum() for a, b in zip(exact, rounded, strict=True))
    assert judges.noise(model.integer_graph) == pytest.approx(
        noise / sum((a.astype(np.float64) ** 2).sum() for a in exact)
    )
    assert judges.noise(net) == 0


def test_results_that_calibration_shows_are_not_computed_again(net, data):
    integer, name = quantize_model(net, data).integer_graph, net.outputs[0].name
    shown, unseen, wrong = Judges(net), Judges(net), Judges(net)
    for x, exact in zip(data, outputs(net, data), strict=True):
        shown.look(x, {name: exact})
        unseen.look(x, {})
        wrong.look(x, {name: np.zeros_like(exact)})
    assert shown.noise(integer) == unseen.noise(integer) < 1e-2
    assert wrong.noise(integer) > 1e100, "noise beside results of zero"
    seen = []
    calibrate(net, observe_all(net, QuantConfig()), data, look=lambda x, results: seen.append(results[name].copy()))
    np.testing.assert_allclose(seen, outputs(net, data), rtol=1e-5, atol=1e-5)


def test_graphs_that_judges_have_seen_are_not_made_again(net, data, monkeypatch):
    made = []
    monkeypatch.setattr(refine, "integer_graphs", lambda *a: made.append(integer_graphs(*a)) or made[-1])
    model = quantize_model(net, data)
    assert len(made) == 2, "with bias correction, and without"
    assert (model.qdq_graph, model.integer_graph) == made[0]
    again = integer_graphs(model.float_graph, model.frozen, model.config)[1]
    for a, b in zip(outputs(again, data[:3]), outputs(model.integer_graph, data[:3]), strict=True):
        assert np.array_equal(a, b)


def test_results_of_other_shapes_are_no_likeness(net, data):
    judges, other = Judges(net), Builder(shape=net.inputs[0].shape)
    judges.look(data[0], {})
    assert judges.noise(other.done(other.relu(other.x))) == math.inf


@pytest.mark.parametrize("effort", ["fast", "balanced"])
def test_a_correction_that_does_harm_is_undone(effort, net, data, harm):
    model = quantize_model(net, data, QuantConfig.of(effort))
    assert not model.config.bias_correction
    assert "bias correction undone: " in model.report.undone and " dB with, " in model.report.undone
    plain = quantize_model(net, data, QuantConfig.of(effort, bias_correction=False))
    assert "bias correction" not in plain.report.undone and verify(model, data[:1]).exact
    for a, b in zip(outputs(model.integer_graph, data[:3]), outputs(plain.integer_graph, data[:3]), strict=True):
        assert np.array_equal(a, b)


def test_a_correction_that_does_good_stays(net, data):
    model = quantize_model(net, data)
    assert model.config.bias_correction and model.report.undone == ""
    again = requantize(model, model.config)
    assert all(
        np.array_equal(*p) for p in zip(*(outputs(m.integer_graph, data[:3]) for m in (model, again)), strict=True)
    )


def test_statistics_and_data_are_judged_as_data_alone(net, data, harm):
    seen = collect(net, data)
    judged = quantize_model(net, reversed(data), statistics=seen)
    assert judged.report.undone == quantize_model(net, data).report.undone != ""
    assert quantize_model(net, statistics=seen).report.undone == ""  # nothing to judge by


def test_a_correction_stays_where_biases_fit_no_integer_without_it(net, data, harm, monkeypatch):
    calls, real = [], refine.integer_graphs

    def second_fails(*words, **more):
        calls.append(words)
        if len(calls) == 2:
            raise QuantizationError("the bias of channel 0 can reach 6e+12")
        return real(*words, **more)

    monkeypatch.setattr(refine, "integer_graphs", second_fails)
    assert quantize_model(net, data).config.bias_correction and len(calls) == 2
