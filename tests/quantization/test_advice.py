"""Advice is what was measured: settings that gain, with their gain; others are left out."""

import numpy as np
import pytest
from quant_nets import Builder, residual_net

from megengine.quantization import QuantConfig, RangeMethod, advise, quantize_model, requantize
from megengine.quantization.checks import Noise
from megengine.quantization.pipeline import advice
from megengine.quantization.pipeline.advice import slower


def coarse_net():
    """A layer with one channel a hundred times the others, which hurts per tensor."""
    b = Builder()
    w = b.rng.normal(size=(6, 3, 3, 3)).astype(np.float32)
    w[0] *= 100
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    y = b.op("conv2d", b.x, b.g.constant(w), label="coarse", **attrs)
    return b, b.done(b.conv(b.op("relu6", y, label="coarse_act"), 4, label="last"))


def test_the_layer_to_keep_in_float_comes_first_with_the_gain_that_it_has():
    b, graph = coarse_net()
    config = QuantConfig(weights="per_tensor", activations=RangeMethod("minmax"))
    model = quantize_model(graph, b.data(), config)
    data, seen = b.data(3, seed=7), []
    sensitive = [model.float_graph.inputs[0].name, "last", "coarse"]  # an input may be the most sensitive value
    found = advise(model, sensitive, data, b.data(), progress=lambda *step: seen.append(step))
    order = [(one.gain < 1, (one.time or 0) > 0.5, -one.gain) for one in found]
    assert order == sorted(order)
    assert "keep coarse in float" in [one.text for one in found]
    one = next(x for x in found if x.text == "keep coarse in float")
    again = requantize(model, one.config, b.data())
    noise = Noise()
    for x in data:
        noise.add([y.numpy() for y in model.float_graph.interpret(x)], [again(x).numpy()])
    assert one.sqnr_db == pytest.approx(noise.sqnr_db, abs=0.2) and one.gain > 3
    assert str(one).startswith("keep coarse in float: +") and str(one).endswith(
        ("% time", ", time: no measurable difference")
    )
    assert set(one.to_json()) == {"text", "sqnr_db", "gain", "time"} and seen[-1] == ("advice", 8, 8)


@pytest.mark.parametrize(
    ("factor", "noise", "elsewhere", "found"),
    [(1.0, 0.05, 1.0, None), (0.97, 0.05, 1.0, None), (1.3, 0.05, 1.0, 0.3), (0.7, 0.05, 1.0, -0.3),
     (0.82, 0.01, 0.82, None), (1.02, 0.001, 1.0, 0.02)],
    ids=["equal", "less than the noise", "slower", "faster", "no more than another place", "little, without noise"],
)  # fmt: skip
def test_a_difference_of_time_is_told_where_it_exceeds_the_spread(monkeypatch, factor, noise, elsewhere, found):
    """A clock that runs by what each plan takes, in slow and fast periods that all plans share."""
    rng, clock = np.random.default_rng(3), [0]
    monkeypatch.setattr("time.process_time_ns", lambda: clock[0])

    def taking(share):
        def run():
            period = 1 + 0.5 * ((clock[0] // 40_000_000) % 2)
            clock[0] += int(2_500_000 * share * period * (1 + noise * rng.standard_normal()))

        return run

    times = [slower(taking(1.0), taking(elsewhere), taking(factor), ()) for _ in range(20)]
    told = [one for one in times if one is not None]
    if found is None:
        assert len(told) <= 2
    else:
        assert len(told) == 20 and np.median(told) == pytest.approx(found, rel=0.1)


def test_settings_that_cost_no_time_are_advised_before_layers_in_float():
    b, graph = coarse_net()
    model = quantize_model(graph, b.data(), QuantConfig(weights="per_tensor", precision="w4a8"))
    found = {one.text: one.gain for one in advise(model, ["coarse"], b.data(3, seed=7), b.data())}
    first = next(iter(found))
    assert first in ("--weights per_channel", "--effort balanced") and found[first] > 3
    assert found["--weights per_channel"] > found["keep the weight of coarse in int8"] > 0
    unread = advise(model, ["coarse"], b.data(3, seed=7))
    assert "--effort balanced" not in [one.text for one in unread], "it needs the data again"


def test_advice_is_ordered_by_use(monkeypatch):
    """A decibel that costs twice the time is of more use than a tenth that costs nothing."""
    b, graph = residual_net()
    gains = {"a": (0.15, None), "b": (5.0, 1.5), "c": (4.0, 0.1), "d": (0.9, 0.2), "e": (6.0, None)}
    quantized = quantize_model(graph, b.data())
    kept = [(name, quantized.config.changed(exclude=(name,))) for name in gains]
    monkeypatch.setattr(advice, "_proposals", lambda *_, **__: kept)
    monkeypatch.setattr(advice, "_compiled", lambda model, config, data: config.exclude[0])
    monkeypatch.setattr(advice, "_sqnr", lambda one, *_: 30 + gains[one][0] if isinstance(one, str) else 30.0)
    monkeypatch.setattr(advice, "slower", lambda here, again, other, inputs: gains[other][1])
    assert [one.text for one in advise(quantized, [], b.data(1, seed=7))] == ["e", "c", "b", "d", "a"]


def test_what_gains_nothing_is_left_out():
    b, graph = residual_net()
    model = quantize_model(graph, b.data(), QuantConfig(activations=RangeMethod("percentile", percentile=80)))
    found = advise(model, [], b.data(3, seed=7))
    assert [one.text for one in found] == ["--activations mse"] and found[0].gain > 1
    assert advise(quantize_model(graph, b.data()), [], b.data(3, seed=7)) == ()
