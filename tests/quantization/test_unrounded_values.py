"""Values that layers read as integers: float ops and results take those that are made in float as they are."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import Tensor, plan
from megengine.core.dtype import known_quantized
from megengine.quantization import QuantConfig, prepare_qat, quantize_model, verify
from megengine.traced_module import trace_module
from megengine.traced_module.ir.expr import Apply

RNG = np.random.default_rng(0)
BATCHES = [RNG.normal(0, 1, (2, 3, 12, 12)).astype(np.float32) for _ in range(4)]


class Net(M.Module):
    """Layers of an input, beside what `way` makes of the same input and of their result."""

    def __init__(self, way):
        super().__init__()
        self.first, self.last = M.Conv2d(3, 8, 3, padding=1), M.Conv2d(8, 3, 3, padding=1)
        self.last.weight *= 0.1
        self.way = way

    def forward(self, x):
        return self.way(x, self.last(F.relu(self.first(x))))


def of(way, config=None):
    traced = trace_module(Net(way), Tensor(BATCHES[0]))
    return traced, quantize_model(traced, BATCHES, config)


def results(run, x=BATCHES[0]):
    made = run(x)
    return [np.asarray(y) for y in (made if isinstance(made, (tuple, list)) else (made,))]


def test_a_sum_with_an_input_keeps_its_digits():
    traced, quantized = of(lambda x, noise: x - noise)
    (wanted,), (got,) = results(traced), results(quantized)
    layers = [y for y in quantized.integer_graph.exprs() if isinstance(y, Apply) and y.op == "qconv2d"]
    off = np.abs(got - wanted).max()
    step = known_quantized(layers[0].inputs[0].dtype).only_scale
    assert off < step / 8, "an input in steps is off by half a step"
    assert verify(quantized, BATCHES[:1]).exact
    np.testing.assert_array_equal(results(plan.compile(quantized.traced()))[0], got)


@pytest.mark.parametrize("profile", ["x86", "openvino"])
def test_what_follows_from_inputs_alone_is_that_of_the_float_network(profile):
    traced, quantized = of(
        lambda x, y: (y, x, F.exp(x).mean(axis=(2, 3)), F.concat([x, y], axis=1)), QuantConfig(profile=profile)
    )
    for wanted, got in zip(results(traced)[1:3], results(quantized)[1:3], strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-6)
    assert verify(quantized, BATCHES[:1]).exact


def test_a_float_result_that_a_layer_reads_is_given_as_it_is():
    traced, quantized = of(lambda x, y: (y, F.exp(-F.abs(x))))
    np.testing.assert_allclose(results(quantized)[1], results(traced)[1], rtol=2e-6)


def test_an_excluded_layer_reads_its_input_unrounded():
    class Two(M.Module):
        def __init__(self):
            super().__init__()
            self.exact, self.rounded = M.Conv2d(3, 4, 3), M.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.exact(x), self.rounded(x)

    traced = trace_module(Two(), Tensor(BATCHES[0]))
    quantized = quantize_model(traced, BATCHES, QuantConfig(exclude=("exact",)))
    wanted, got = results(traced), results(quantized)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-5, atol=1e-5)
    assert np.abs(got[1] - wanted[1]).max() > 1e-3


def test_targets_with_integer_results_round_them():
    _, quantized = of(lambda x, y: (y, x), QuantConfig(profile="onnx-qlinear"))
    steps = results(quantized)[1] / quantized.frozen.edges[quantized.integer_graph.inputs[0].name].only_scale
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)


def test_training_takes_the_values_of_the_integer_network():
    net = trace_module(Net(lambda x, noise: (x - noise, F.exp(x) * noise)), Tensor(BATCHES[0]))
    module = prepare_qat(net, calibration=BATCHES)
    integers = module.convert()
    for ours, theirs in zip(results(module.train()), results(integers), strict=True):
        np.testing.assert_array_equal(ours, theirs)
