"""Where the noise of integer edges comes from: measured against networks in which it was planted."""

import math

import numpy as np
import pytest
from quant_nets import Builder, residual_net

from megengine.quantization import QuantConfig, RangeMethod, quantize_model
from megengine.quantization.checks.analysis import SOURCES, Agreement, analyze
from megengine.quantization.checks.pairs import Comparison, ValuePair
from megengine.quantization.checks.verify import verify


def edges(model, data):
    return {edge.name: edge for edge in model.analyze(data).edges}


def relu6_net():
    """A ReLU6 that most values pass: they are 6, the last code."""
    b = Builder()
    y = b.conv(b.x, 4, label="layer")
    y = b.op("relu6", b.op("mul", y, b.g.constant(np.float32([[[[40.0]]]]))), label="act")
    return b, b.done(b.conv(y, 3, label="last"))


def test_a_mask_has_no_ratio_and_what_overflows_has_the_worst():
    exact = np.float32([1, -np.inf, 2])
    masked, overflown = Agreement(), Agreement()
    masked.update(exact, np.float32([1, -50, 2.5]))
    assert masked.sqnr_db == pytest.approx(10 * np.log10(5 / 0.25)) and masked.count == 2
    overflown.update(np.float32([1, 2]), np.float32([1, np.inf]))
    assert overflown.sqnr_db == -math.inf and overflown.cosine == 0


def test_values_at_the_last_code_are_not_cut():
    b, graph = relu6_net()
    model = quantize_model(graph, b.data())
    act = edges(model, b.data())["act"]
    values = []
    from megengine.traced_module import interpret

    interpret(model.float_graph, b.data(1), on_value=lambda n, x: values.append(x) if n.name == "act" else None)
    assert np.mean(values[0].numpy() == 6) > 0.3
    assert act.cut == 0 and act.noise["cut"] == 0 and act.noise_from != SOURCES["cut"]


def test_minimum_and_maximum_of_the_input_are_not_cut():
    b, graph = residual_net()
    data = b.data()
    found = edges(quantize_model(graph, data, QuantConfig(activations=RangeMethod("minmax"))), data)
    assert found["x"].cut == 0 and found["x"].noise_from == SOURCES["steps"]
    assert found["x"].noise["earlier"] == 0
    assert found["x"].steps_sqnr_db == pytest.approx(found["x"].sqnr_db)


def test_a_planted_clipping_is_found_where_it_is():
    """Calibrated on the data, then shown input of which known values lie beyond the range."""
    b, graph = residual_net()
    model = quantize_model(graph, b.data())
    data = b.data(2, seed=9)
    low, high = edges(model, data)["x"].representable
    step = (high - low) / 255
    planted = []
    for x in data:
        x = np.clip(x, low, high)
        x.reshape(-1)[:10] = high + 0.4 * step  # rounds to the last code: not cut
        x.reshape(-1)[10:14] = high * 3
        x.reshape(-1)[14:19] = low * 3
        planted.append(x)
    found = edges(model, planted)
    assert found["x"].cut == 18 / (2 * planted[0].size)
    assert found["x"].noise_from == SOURCES["cut"]
    assert found["x"].steps_sqnr_db == found["x"].sqnr_db
    behind = found["stem_act"]
    assert behind.noise_from == SOURCES["earlier"] and behind.noise["earlier"] > 0.9


def test_a_range_that_keeps_part_of_the_values_cuts_the_rest():
    b, graph = residual_net()
    data = b.data()
    kept = QuantConfig(activations=RangeMethod("percentile", percentile=90))
    found = edges(quantize_model(graph, data, kept), data)
    assert found["x"].cut == pytest.approx(0.1, abs=0.02)
    assert found["x"].noise_from == SOURCES["cut"]


def test_noise_parts_add_up_and_describe_themselves():
    b, graph = residual_net()
    result = quantize_model(graph, b.data()).analyze(b.data(2, seed=5))
    for edge in result.edges:
        assert math.isclose(sum(edge.noise.values()), 1) and list(edge.noise) == list(SOURCES)
    described = result.to_json()["edges"]
    assert [one["noise_from"] for one in described] == [edge.noise_from for edge in result.edges]
    assert {"cut", "steps_sqnr_db", "noise"} <= set(described[0])


def test_an_edge_without_noise_names_no_source():
    b = Builder((1, 3, 8, 8))
    graph = b.done(b.conv(b.x, 4, label="last"))
    data = [np.tile(np.float32([0, 255.0]), 96).reshape(1, 3, 8, 8)]
    edge = edges(quantize_model(graph, data), data)["x"]
    assert (edge.sqnr_db, edge.noise_from, sum(edge.noise.values())) == (math.inf, "", 0)


def test_notebooks_show_what_was_found():
    b, graph = residual_net()
    model, data = quantize_model(graph, b.data()), b.data(2)
    found = analyze(model.float_graph, model.qdq_graph, data)
    assert found._repr_html_().count("<tr>") == 1 + len(found.edges) > 1
    assert "layers in integers" in model.report._repr_html_()
    assert "equal" in verify(model, data)._repr_html_()


@pytest.mark.parametrize(
    ("ratios", "at"),
    [
        ((55, 40, 0, 38, 37), 1),  # a mask: what reads it has the ratio of what stood before it
        ((50, 40, 12, 13, 12), 2),
        ((50, 49, 20), 2),
        ((42, 38, 38, 31, 30.5), 3),  # the first steps of integers are no news
        ((70, 65, 61), None),
    ],
)
def test_the_steepest_fall_is_one_that_stays(ratios, at):
    values = tuple(ValuePair(f"v{i}", f"v{i}", "add", "", float(r), 1.0, 0.0) for i, r in enumerate(ratios))
    found = Comparison(values, 0, 10.0, 1.0, None, 1).steepest
    assert found is (None if at is None else values[at])
