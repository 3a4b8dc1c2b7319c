"""Block reconstruction: which blocks there are, what they learn, and that nothing worse on held-out samples stays."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from quant_nets import concat_net, gated_net, residual_net

from megengine.core.errors import OptionError
from megengine.quantization import QuantConfig, quantize_model, verify
from megengine.quantization.pipeline import reconstruct as blocks
from megengine.quantization.pipeline.reconstruct import blocks_of, reconstruct
from megengine.quantization.pipeline.student import Student
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from tests.helpers.frozen_numbers import same

FOUR_BITS = QuantConfig.of("fast", precision="w4a8")


@pytest.fixture(scope="module")
def rounded():
    """A network with 4-bit weights that were rounded to nearest, and samples."""
    b, graph = residual_net()
    data = b.data(40)
    return quantize_model(graph, data, FOUR_BITS), [(np.asarray(x),) for x in data]


def noise(model, frozen, samples):
    graph = Student(model.float_graph, model.annotation, frozen, False).network().integer_graph
    errors = [interpret(g, [Tensor(x)])[0].numpy() for (x,) in samples for g in (model.float_graph, graph)]
    return np.mean([np.square(a - b).mean() for a, b in zip(errors[::2], errors[1::2], strict=True)])


@pytest.mark.parametrize("make", [residual_net, gated_net, concat_net])
def test_blocks_hold_every_op_once_and_end_where_all_paths_pass(make):
    b, graph = make()
    model = quantize_model(graph, b.data(3), FOUR_BITS)
    found = blocks_of(model.float_graph, model.annotation, Student(graph, model.annotation, model.frozen, False))
    ops = [e for e in model.float_graph.exprs() if hasattr(e, "record")]
    assert [e for one in found for e in one.exprs] == ops
    assert found[0].first is model.float_graph.inputs[0] and found[-1].last is model.float_graph.outputs[0]
    assert all(one.last is other.first for one, other in pairwise(found))
    assert all(len(one.layers) >= blocks.LAYERS for one in found[:-1])


def test_integers_that_are_one_off_are_learnt_and_the_network_stays_exact(rounded):
    model, samples = rounded
    rng, off = np.random.default_rng(0), {}
    for name, weight in model.frozen.weights.items():
        moved = weight.values + rng.integers(-1, 2, weight.values.shape)
        off[name] = replace(weight, values=moved.clip(-8, 7).astype(weight.values.dtype))
    wrong = replace(model.frozen, weights=off)
    learned = reconstruct(model.float_graph, model.annotation, wrong, samples, steps=40)
    fresh = [(np.asarray(x),) for x in residual_net()[0].data(50)[40:]]
    assert noise(model, learned, fresh) < 0.3 * noise(model, wrong, fresh)
    for weight in learned.weights.values():
        assert weight.values.min() >= weight.dtype.qmin and weight.values.max() <= weight.dtype.qmax
    b, graph = residual_net()
    whole = quantize_model(graph, b.data(40), FOUR_BITS.changed(reconstruction=20))
    assert verify(whole, b.data(2), with_float=False).exact


def test_blocks_that_do_worse_on_samples_held_out_stay(rounded, monkeypatch):
    model, samples = rounded
    monkeypatch.setattr(blocks, "GAIN", 0.0)
    assert same(reconstruct(model.float_graph, model.annotation, model.frozen, samples, steps=5), model.frozen)


def test_what_cannot_learn_stays(rounded):
    model, samples = rounded
    for few in ([], samples[: blocks.LEAST - 1]):
        assert reconstruct(model.float_graph, model.annotation, model.frozen, few, steps=5) is model.frozen


def test_any_order_of_the_data_gives_the_same_network():
    b, graph = residual_net()
    data, config = b.data(12), FOUR_BITS.changed(reconstruction=10)
    one, other = (quantize_model(graph, d, config) for d in (data, data[::-1]))
    assert same(one.frozen, other.frozen)


def test_an_interrupted_run_goes_on_to_the_same_bits(rounded, tmp_path):
    model, samples = rounded
    state, seen = tmp_path / "blocks.state", []

    def run(**options):
        return reconstruct(model.float_graph, model.annotation, model.frozen, samples, steps=20, **options)

    def stop(stage, done, total):
        assert stage == "reconstruction" and total == 2
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(state=state, progress=stop)
    learn = blocks._Run._learn
    try:
        blocks._Run._learn = lambda self, block, wanted: (seen.append(self.number), learn(self, block, wanted))
        assert same(run(state=state), run())
    finally:
        blocks._Run._learn = learn
    assert seen == [1, 0, 1], "the first block was kept"
    with pytest.raises(OptionError, match="is of another network, other data or settings"):
        reconstruct(model.float_graph, model.annotation, model.frozen, samples, steps=21, state=state)
    state.write_bytes(b"none")
    with pytest.raises(OptionError, match="is no state of it"):
        run(state=state)
    with pytest.raises(OptionError, match="expected a number of steps, 0 for none; got -1"):
        QuantConfig(reconstruction=-1)
