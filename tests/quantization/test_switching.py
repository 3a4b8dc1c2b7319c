"""Layers alone in integers and alone in float: the same numbers as graphs made for it give."""

import numpy as np
import pytest
from quant_nets import Builder, concat_net, gated_net, residual_net, transposed_net

import megengine.module as M
from megengine import random
from megengine.quantization import QuantConfig, Sensitivity, quantize_model, sensitivity
from megengine.quantization.checks import Switch, Switchboard, diagnose
from megengine.quantization.ranges import as_tensors
from megengine.tensor import Tensor
from megengine.traced_module import interpret, trace_module

NETS = [residual_net, concat_net, gated_net, transposed_net]


def outputs(graph, arrays):
    return [y.numpy() for y in interpret(graph, as_tensors(arrays, graph))]


@pytest.fixture(params=NETS, ids=lambda net: net.__name__)
def made(request):
    b, graph = request.param()
    model = quantize_model(graph, b.data())
    arrays = (b.data(1, seed=5)[0],)
    return model, arrays, Switchboard(model.float_graph, model.qdq_graph)


def test_all_off_is_the_float_network_and_all_on_the_rounded_one(made):
    model, arrays, board = made
    sample = board.sample(arrays)
    exact, rounded = outputs(model.float_graph, arrays), outputs(model.qdq_graph, arrays)
    every = board.switches
    for wanted, ways in (
        (exact, (sample.exact, sample.turned_on([]), sample.turned_off(every))),
        (rounded, (sample.rounded, sample.turned_on(every), sample.turned_off([]))),
    ):
        for got in ways:
            assert all(np.array_equal(a, b) for a, b in zip(wanted, got, strict=True))


def test_what_is_on_and_what_is_off_are_the_two_sides_of_one_switchboard(made):
    _, arrays, board = made
    sample, every = board.sample(arrays), board.switches
    for number in range(0, len(every), 3):
        on = every[number : number + 2]
        rest = [one for one in every if one not in on]
        for a, b in zip(sample.turned_on(on), sample.turned_off(rest), strict=True):
            assert np.array_equal(a, b)


def test_every_switch_belongs_to_one_layer_in_order_of_execution():
    b, graph = residual_net()
    board = Switchboard(*(lambda m: (m.float_graph, m.qdq_graph))(quantize_model(graph, b.data())))
    units = board.units()
    assert list(units) == ["x", "stem", "dw", "project", "head", "pool", "matmul_out"]
    assert sorted(str(one) for unit in units.values() for one in unit) == sorted(map(str, board.switches))
    assert units["stem"] == [Switch("activations", "stem_act"), Switch("weights", "stem"), Switch("bias", "stem")]


class Tables(M.Module):
    def __init__(self):
        super().__init__()
        self.table, self.steps, self.last = M.Embedding(20, 8), M.LSTM(8, 6), M.Linear(6, 3)

    def forward(self, x):
        return self.last(self.steps(self.table(x))[0])


@pytest.mark.parametrize("settings", [{}, {"precision": "w4", "group": 2}])
def test_tables_and_recurrent_layers_are_layers(settings):
    random.seed(0)
    net, words = Tables().eval(), [np.arange(i, i + 10, dtype=np.int32).reshape(5, 2) for i in range(4)]
    model = quantize_model(trace_module(net, Tensor(words[0])), words, QuantConfig(**settings))
    sample = Switchboard(model.float_graph, model.qdq_graph).sample((words[0],))
    np.testing.assert_array_equal(sample.exact[0], outputs(model.float_graph, (words[0],))[0])
    found = sensitivity(model.float_graph, model.qdq_graph, words[:2], integer_graph=model.integer_graph)
    reports = {one.op: one for one in found.layers if one.weight_low}
    assert set(reports) == ({"recurrent", "matmul"} if settings else {"index", "recurrent", "matmul"})
    if not settings:
        np.testing.assert_array_equal(reports["index"].weight_high, net.table.weight.numpy().max(axis=1))
    assert all(np.isfinite(one.local["weights"]) for one in reports.values())
    assert diagnose(model.float_graph, model.qdq_graph, words[:2]) == ()


def test_a_layer_with_coarse_weights_gains_most_in_float():
    """One channel a hundred times the others: per tensor, the others hardly have codes."""
    b = Builder()
    y = b.relu(b.conv(b.x, 6, label="first"), label="first_act")
    w = b.rng.normal(size=(6, 6, 3, 3)).astype(np.float32)
    w[0] *= 100
    attrs = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}
    y = b.op("conv2d", y, b.g.constant(w), label="coarse", **attrs)
    graph = b.done(b.conv(b.op("relu6", y, label="coarse_act"), 4, label="last"))
    model = quantize_model(graph, b.data(), QuantConfig(weights="per_tensor"))
    found = sensitivity(model.float_graph, model.qdq_graph, b.data(2, seed=3), integer_graph=model.integer_graph)
    worst = found.worst(1)[0]
    assert worst.name == "coarse" and worst.gain > 3 and worst.alone < min(x.alone for x in found.layers if x != worst)
    assert worst.local["weights"] < min(worst.local["activations"], worst.local["bias"])
    assert found.parts["weights"] < found.parts["activations"] and abs(found.fusion_db) < 3
    assert max(worst.weight_high) == w.max() and len(worst.weight_low) == 6


def test_reports_are_plain_values_and_shown_in_notebooks():
    b, graph = residual_net()
    model = quantize_model(graph, b.data())
    seen = []
    progress = lambda *step: seen.append(step)  # noqa: E731
    found = sensitivity(model.float_graph, model.qdq_graph, b.data(2), progress=progress)
    assert isinstance(found, Sensitivity) and found.fusion_db is None and seen[-1] == ("sensitivity", 2, None)
    described = found.to_json()
    assert [one["name"] for one in described["layers"]] == [one.name for one in found.layers]
    assert found._repr_html_().count("<tr>") == 1 + len(found.layers)
