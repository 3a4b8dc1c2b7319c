"""Layers that are rounded in turn, each for the inputs that the rounded ones before it give."""

import numpy as np
import pytest
from quant_nets import Builder, concat_net, gated_net, residual_net, run, sqnr, transposed_net

from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.quantization.pipeline import refine, sequential
from megengine.quantization.pipeline.gptq import as_rows
from megengine.quantization.pipeline.moments import results_of, windows_of
from megengine.quantization.pipeline.sequential import Joint, compensated, drawn
from megengine.quantization.pipeline.walk import Walk
from megengine.quantization.ranges import sample_number
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply
from tests.helpers.frozen_numbers import same

NETS = {"residual": residual_net, "concat": concat_net, "transposed": transposed_net, "gated": gated_net}
IN_TURN = QuantConfig(precision="w4a8", rounding="gptaq")


def layers_of(graph):
    return [e for e in graph.exprs() if isinstance(e, Apply) and e.record.weighted]


def joint_of(layer, xs, ys):
    joint = Joint(layer, scale=0.5, unit=2.0**-20)
    for at, (x, y) in enumerate(zip(xs, ys, strict=True)):
        joint.update(at % 2, x, y)
    return joint


@pytest.fixture(scope="module")
def layer():
    return layers_of(residual_net()[1])[0]


def test_moments_are_those_of_all_samples(layer):
    rng = np.random.default_rng(0)
    xs, ys = rng.integers(-9, 9, (6, 2, 50, 3)), rng.normal(size=(6, 2, 50, 4)).astype(np.float32)
    c, cross, x, y = joint_of(layer, xs, ys).moments(0, 1)
    for group in range(2):
        a, b = xs[:, group].reshape(-1, 3) * 0.5, ys[:, group].reshape(-1, 4).astype(np.float64)
        np.testing.assert_allclose(c[group], a.T @ a / len(a), atol=1e-6)
        np.testing.assert_allclose(cross[group], b.T @ a / len(a), atol=1e-6)
        np.testing.assert_allclose(x[group], a.mean(0))
        np.testing.assert_allclose(y[group], b.mean(0), atol=1e-6)


def test_a_weight_makes_up_for_errors_of_its_inputs(layer):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(1, 4, 5))
    exact = rng.integers(-60, 60, (40, 1, 30, 5))
    shrunk = np.rint(exact * np.array([0.5, 1.0, 1.0, 0.7, 1.0]))
    ys = (exact * 0.5) @ weight.swapaxes(1, 2)
    found = compensated(weight, joint_of(layer, shrunk[:20], ys[:20]))

    def left(w):
        return np.square((shrunk[20:] * 0.5) @ w.swapaxes(1, 2) - ys[20:]).mean()

    assert left(found) < 0.5 * left(weight)


def test_a_weight_stays_where_its_inputs_are_exact_or_their_errors_chance(layer):
    rng = np.random.default_rng(0)
    weight, x = rng.normal(size=(1, 4, 40)), rng.integers(-60, 60, (8, 1, 3, 40))
    ys = (x * 0.5) @ weight.swapaxes(1, 2)
    chance = ys + rng.normal(size=ys.shape)
    assert compensated(weight, joint_of(layer, x, chance)) is weight
    np.testing.assert_allclose(compensated(weight, joint_of(layer, x, ys)), weight, atol=1e-3)
    assert compensated(weight, joint_of(layer, x[:1], ys[:1])) is weight


@pytest.mark.parametrize("net", NETS)
def test_results_belong_to_the_windows(net):
    _, graph = NETS[net]()
    for one in layers_of(graph):
        if not (one.record.rows or one.record.rule.convolves):
            continue
        x = np.random.default_rng(1).integers(-9, 9, one.inputs[0].shape).astype(np.float32)
        walk = Walk(graph, {(one.output.name, 0): Tensor(x)})
        start = walk.start((np.zeros(graph.inputs[0].shape, np.float32),))
        y = walk.result(walk.moved(start, walk.index[one.output.name])).numpy()
        products = windows_of(one, x, 0.0) @ as_rows(one, one.inputs[1].expr.value.numpy()).swapaxes(1, 2)
        left = results_of(one, y) - products
        np.testing.assert_allclose(left - left[:, :1], 0, atol=1e-3)  # the bias alone


@pytest.mark.parametrize("net", NETS)
def test_a_graph_in_pieces_gives_what_it_gives_as_a_whole(net):
    b, graph = NETS[net]()
    x = b.data(1)[0]
    walk = Walk(graph)
    place = walk.start((x,))
    for stop in range(len(walk.exprs) + 1):
        last, place = place, walk.moved(place, stop)
    assert last.at == len(walk.exprs) - 1
    for node, expected in zip(graph.outputs, run(graph, x), strict=True):
        np.testing.assert_array_equal(place.values[id(node)].numpy(), expected)
    assert len(place.values) == len(graph.outputs)


@pytest.mark.parametrize("net", NETS)
def test_networks_in_turn_are_exact(net):
    b, graph = NETS[net]()
    model = quantize_model(graph, b.data(20), IN_TURN)
    assert model.config.rounding == "gptaq"
    assert verify(model, b.data(1, seed=7)).exact


def test_errors_of_many_layers_are_made_up_for():
    b = Builder((1, 8, 6, 6))
    x = b.x
    for label in "abcdef":
        x = b.relu(b.conv(x, 8, label=label), label=f"{label}_act")
    graph = b.done(b.linear(b.op("mean", x, axis=(2, 3), keepdims=False), 10))
    data, levels = b.data(70), []
    for rounding in ("nearest", "gptaq"):
        model = quantize_model(graph, data[:60], IN_TURN.changed(rounding=rounding))
        assert model.config.rounding == rounding
        levels.append(np.mean([sqnr(run(graph, x)[0], run(model.integer_graph, x)[0]) for x in data[60:]]))
    assert levels[1] > levels[0] + 1


def test_order_batches_and_memory_make_no_difference(monkeypatch):
    b, graph = residual_net()
    data = b.data(18)
    one = quantize_model(graph, data, IN_TURN)
    other = quantize_model(graph, data[::-1], IN_TURN)
    assert same(one.frozen, other.frozen)
    monkeypatch.setattr(sequential, "MEMORY", 0)
    assert same(one.frozen, quantize_model(graph, [*data[9:], *data[:9]], IN_TURN).frozen)


def test_samples_that_judge_choose_no_weight():
    b, graph = residual_net()
    data = [(x,) for x in b.data(20)]
    judging = data[:3]
    numbers = [sample_number(one) for one in drawn([*data, *data], graph, judging)]
    assert numbers == sorted(sample_number(one) for one in data[3:])
    assert len(drawn(data[:10], graph, judging)) == 10


def test_biases_stay_without_their_correction():
    b, graph = residual_net()
    model = quantize_model(graph, b.data(4), IN_TURN.changed(bias_correction=False))
    plain = quantize_model(graph, b.data(4), IN_TURN.changed(bias_correction=False, rounding="nearest"))
    for place, bias in plain.frozen.biases.items():
        np.testing.assert_allclose(model.frozen.biases[place], bias, atol=0.02)


@pytest.mark.parametrize("rounding", ["gptaq", "adaround"])
def test_one_sample_is_enough(rounding):
    b, graph = residual_net()
    config = IN_TURN.changed(rounding=rounding, reconstruction=1, distillation=1)
    assert verify(quantize_model(graph, b.data(1), config), b.data(1), with_float=False).exact


def test_what_does_harm_is_undone(monkeypatch):
    b, graph = residual_net()
    real = refine.rounded_in_turn

    def shifted(*words, **more):
        frozen = real(*words, **more)
        for bias in frozen.biases.values():
            bias += np.float32(5)
        return frozen

    monkeypatch.setattr(refine, "rounded_in_turn", shifted)
    model = quantize_model(graph, b.data(20), IN_TURN)
    assert model.config.rounding in ("gptq", "nearest")
    assert model.report.undone.startswith("gptaq")


def test_progress_counts_layers():
    b, graph = residual_net()
    seen = []
    quantize_model(graph, b.data(4), IN_TURN, progress=lambda *words: seen.append(words))
    turns = [words for words in seen if words[0] == "gptaq"]
    assert turns == [("gptaq", at, len(turns)) for at in range(1, len(turns) + 1)]
    assert len(turns) == len(layers_of(graph))
