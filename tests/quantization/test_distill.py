"""Training against the float network: it starts at the network that is there, and nothing that scores worse stays."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from quant_nets import Builder, concat_net, gated_net, residual_net, transposed_net

from megengine.core.errors import CalibrationError, OptionError
from megengine.quantization import QuantConfig, quantize_model, requantize, verify
from megengine.quantization.pipeline import distill as distillation
from megengine.quantization.pipeline.distill import cuts, distill
from megengine.quantization.pipeline.student import Student
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply
from tests.helpers.frozen_numbers import same

NETS = {"residual": residual_net, "concat": concat_net, "transposed": transposed_net, "gated": gated_net}
FOUR_BITS = QuantConfig.of("balanced", precision="w4a8")


@cache
def balanced(net, precision="w4a8"):
    b, g = NETS[net]()
    return quantize_model(g, b.data(10), FOUR_BITS.changed(precision=precision)), b.data(10)


def held_out_level(model, frozen, data):
    """Mean SQNR of the results on every fifth sample, in the order of their numbers."""
    samples = sorted(data, key=lambda x: distillation.sample_number((x,)))[4::5]
    graph, levels = requantized(model, frozen), []
    for x in samples:
        exact, result = (interpret(g, [x])[0].numpy().astype(np.float64) for g in (model.float_graph, graph))
        levels.append(10 * np.log10(np.square(exact).sum() / np.square(result - exact).sum()))
    return np.mean(levels)


def requantized(model, frozen):
    return Student(model.float_graph, model.annotation, frozen, False).network().integer_graph


@pytest.mark.parametrize("precision", ["w4a8", "w8a8"])
@pytest.mark.parametrize("net", NETS)
def test_training_starts_at_the_network_that_is_there(net, precision):
    model, _ = balanced(net, precision)
    student = Student(model.float_graph, model.annotation, model.frozen, int_bias=False)
    assert student.weights
    assert same(student.frozen(), model.frozen)


@pytest.mark.parametrize("net", NETS)
def test_the_result_is_never_worse_on_samples_held_out(net):
    model, data = balanced(net)
    trained = distill(model.float_graph, model.annotation, model.frozen, data, epochs=3)
    before, after = (held_out_level(model, frozen, data) for frozen in (model.frozen, trained))
    assert after >= before - 1e-9


def test_errors_of_biases_and_weights_are_trained_away(monkeypatch):
    model, data = balanced("residual", "w8a8")
    student = Student(model.float_graph, model.annotation, model.frozen, int_bias=False)
    for change in student.biases.values():
        change._reset(Tensor(np.full(change.shape, 2, np.float32)))
    for steps in student.weights.values():
        steps._reset(Tensor(steps.numpy() + np.float32(3)))
    student.bound()
    wrong = student.frozen()
    monkeypatch.setattr(distillation, "RATES", {"weights": 0.6, "biases": 0.3, "scales": 0.003})
    trained = distill(model.float_graph, model.annotation, wrong, data, epochs=4)
    before, after = (held_out_level(model, frozen, data) for frozen in (wrong, trained))
    assert after > before + 5


def test_best_distills_and_stays_exact():
    b, g = residual_net()
    data, stages = b.data(10), []
    model = quantize_model(
        g, data, QuantConfig.of("best", distillation=1), progress=lambda stage, *_: stages.append(stage)
    )
    assert "distillation" in stages
    assert verify(model, data[:1], with_float=False).exact


def test_what_training_makes_worse_is_undone(monkeypatch):
    model, data = balanced("residual")
    monkeypatch.setattr(distillation, "RATES", {"weights": 3.0, "biases": 30.0, "scales": 0.9})
    trained = distill(model.float_graph, model.annotation, model.frozen, data, epochs=1)
    assert same(trained, model.frozen)


def test_a_loss_that_is_not_finite_ends_training(monkeypatch):
    model, data = balanced("residual")
    seen = []
    monkeypatch.setattr(distillation, "_noise", lambda value, wanted: Tensor(np.float32("nan")))
    trained = distill(
        model.float_graph, model.annotation, model.frozen, data, epochs=2, progress=lambda *a: seen.append(a)
    )
    assert same(trained, model.frozen)
    assert not seen


def test_the_order_of_samples_and_batches_makes_no_difference():
    b = Builder((1, 3, 8, 8))
    g = b.done(b.linear(b.op("mean", b.relu(b.conv(b.x, 4, stride=2)), axis=(2, 3), keepdims=False), 5))
    data = b.data(10)
    config = FOUR_BITS.changed(distillation=2)
    one = quantize_model(g, data, config)
    other = quantize_model(g, [np.concatenate(data[:4:-1]), *data[:5]], config)
    assert same(one.frozen, other.frozen)


def test_an_interrupted_training_goes_on_to_the_same_bits(tmp_path):
    model, data = balanced("residual")
    state = tmp_path / "state.pkl"

    def stop(stage, done, total):
        if done == 12:
            raise KeyboardInterrupt

    def run(**options):
        return distill(model.float_graph, model.annotation, model.frozen, data, epochs=2, **options)

    with pytest.raises(KeyboardInterrupt):
        run(state=state, progress=stop)
    seen = []
    assert same(run(state=state, progress=lambda *a: seen.append(a[1])), run())
    assert seen == [12, 16]
    assert same(run(state=state), run())
    with pytest.raises(OptionError, match="of another network, other data or settings; remove it"):
        distill(model.float_graph, model.annotation, model.frozen, data, epochs=3, state=state)
    state.write_bytes(b"no state")
    with pytest.raises(OptionError, match="is no state of training"):
        run(state=state)


def test_progress_counts_samples():
    model, data = balanced("residual")
    seen = []
    distill(model.float_graph, model.annotation, model.frozen, data, epochs=2, progress=lambda *a: seen.append(a))
    assert seen == [("distillation", done, 16) for done in (4, 8, 12, 16)]


@pytest.mark.parametrize(
    "why", ["few samples", "an op without a gradient", "no layer"], ids=lambda why: why.replace(" ", "-")
)
def test_networks_that_cannot_be_trained_stay_as_they_are(why, monkeypatch):
    model, data = balanced("residual")
    frozen = replace(model.frozen, weights={}) if why == "no layer" else model.frozen
    if why == "an op without a gradient":
        monkeypatch.setattr(distillation, "has_gradient", lambda graph: False)
    kept = data[:9] if why == "few samples" else data
    assert distill(model.float_graph, model.annotation, frozen, kept, epochs=1) is frozen


def test_gains_that_may_be_chance_do_not_count():
    assert distillation.is_certain(np.array([1.0, 1.2, 0.9, 1.1]))
    assert not distillation.is_certain(np.array([3.0, -2.0, 1.0, -0.5]))
    assert not distillation.is_certain(np.array([-1.0, -1.1, -0.9]))


def test_settings_are_checked():
    with pytest.raises(OptionError, match="distillation: expected a number of passes, 0 for none; got -1"):
        QuantConfig(distillation=-1)
    b, g = residual_net()
    with pytest.raises(CalibrationError, match="distillation reads the data a second time"):
        quantize_model(g, iter(b.data()), QuantConfig(distillation=1))
    with pytest.raises(CalibrationError, match="distillation needs data"):
        requantize(balanced("residual")[0], QuantConfig(distillation=1))


@pytest.mark.parametrize("net", NETS)
def test_cuts_part_inputs_from_outputs(net):
    """Without a cut no path leads from the inputs to the outputs; without another node one does."""
    graph = balanced(net)[0].float_graph
    ops = [e for e in graph.exprs() if isinstance(e, Apply)]

    def is_cut(name):
        reached = {id(n) for n in graph.inputs}
        for expr in ops:
            if any(id(n) in reached for n in expr.inputs):
                reached |= {id(n) for n in expr.outputs if n.name != name}
        return not any(id(n) in reached for n in graph.outputs)

    names = [e.outputs[0].name for e in ops]
    chosen = cuts(graph, names, 1 << 30)
    expected = [name for name in names if is_cut(name) and name not in {n.name for n in graph.outputs}]
    assert [n for n in chosen if n not in {o.name for o in graph.outputs}] == (
        expected if len(chosen) < distillation.CUTS else [n for n in expected if n in chosen]
    )


def test_cuts_are_few_and_small():
    graph = balanced("residual")[0].float_graph
    names = [e.outputs[0].name for e in graph.exprs() if isinstance(e, Apply)]
    every = cuts(graph, names, 1 << 30)
    sizes = {name: graph.node(name).spec.size for name in every}
    assert cuts(graph, names, 0) == []
    assert sum(sizes[name] for name in cuts(graph, names, max(sizes.values()) - 1)) < max(sizes.values())
