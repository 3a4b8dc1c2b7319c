import numpy as np
import pytest
from quant_nets import concat_net, residual_net

from megengine.autodiff import GradManager
from megengine.core.errors import CalibrationError, OptionError
from megengine.dispatch import apply
from megengine.functional import relu
from megengine.module import BatchNorm2d, Conv2d, Module
from megengine.quantization.pipeline import graph_qat
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.quantization.ranges.methods import RangeMethod
from megengine.tensor import Tensor

CONFIGS = [
    QuantConfig(weights=weights, activations=RangeMethod(method), bias_correction=False)
    for weights, method in (("per_tensor", "minmax"), ("per_tensor", "ema"), ("per_channel", "ema"))
]


def observed(net=residual_net, config=CONFIGS[0]):
    b, graph = net()
    module = graph_qat.prepare_qat(graph, config=config)
    for x in b.data():
        module(Tensor(x))
    return b, graph, module.eval()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("net", [residual_net, concat_net])
def test_conversion_runs_what_was_simulated(net, config):
    b, _, module = observed(net, config)
    x = Tensor(b.data(1, seed=4)[0])
    simulated, integer = module(x).numpy(), module.convert()(x).numpy()
    module.fake_quantizing = False
    exact = module(x).numpy()
    assert np.abs(simulated - integer).max() < 0.2 * np.abs(simulated - exact).max()


def test_same_network_as_post_training_quantization():
    b, graph, _ = observed()
    fresh = graph_qat.prepare_qat(graph, config=CONFIGS[0])
    fresh.fake_quantizing = False
    for x in b.data():
        fresh(Tensor(x))
    x = Tensor(b.data(1, seed=4)[0])
    wanted = quantize_model(graph, b.data(), CONFIGS[0])(x).numpy()
    np.testing.assert_array_equal(fresh.convert()(x).numpy(), wanted)


def test_gradients_pass_through_rounding_and_training_helps():
    b, _, module = observed()
    x, target = Tensor(b.data(1, seed=4)[0]), Tensor(np.zeros((2, 10), np.float32))
    manager = GradManager().attach(list(module.parameters()))
    losses = []
    for _ in range(8):
        with manager:
            error = apply("sub", module(x), target)
            loss = apply("mean", apply("mul", error, error), axis=None, keepdims=False)
            manager.backward(loss)
        losses.append(loss.item())
        for p in module.parameters():
            p._reset(Tensor(p.numpy() - np.float32(0.02) * p.grad.numpy()))
            p.grad = None
    assert losses[-1] < 0.7 * losses[0]


def test_observers_stand_still_in_evaluation_and_when_disabled():
    b, _, module = observed()
    before = {k: s.count for k, s in module._stats.items()}
    module(Tensor(b.data(1)[0]))
    module.train()
    module.observing = False
    module(Tensor(b.data(1)[0]))
    assert before == {k: s.count for k, s in module._stats.items()}
    module.observing = True
    module(Tensor(b.data(1)[0]))
    assert before != {k: s.count for k, s in module._stats.items()}


def test_observer_that_saw_nothing():
    _, graph = residual_net()
    with pytest.raises(CalibrationError, match="no value reached 'x'"):
        graph_qat.prepare_qat(graph).convert()


class Net(Module):
    def __init__(self):
        super().__init__()
        self.conv = Conv2d(3, 4, 3)

    def forward(self, x):
        return apply("relu", self.conv(x))


def test_module_is_captured():
    x = Tensor(np.random.default_rng(0).normal(size=(1, 3, 6, 6)).astype(np.float32))
    module = graph_qat.prepare_qat(Net(), x)
    module(x)
    module.eval()
    assert module.convert()(x).shape == (1, 4, 4, 4)


class PreActivation(Module):
    """A batch norm that no convolution stands in front of, with a negative and a zero scale."""

    def __init__(self):
        super().__init__()
        self.norm, self.conv = BatchNorm2d(3), Conv2d(3, 4, 3)
        self.norm.weight._reset(Tensor(np.array([1.5, -0.7, 0.0], np.float32)))
        self.norm.bias._reset(Tensor(np.array([0.1, 0.4, 0.6], np.float32)))
        self.norm.running_mean._reset(Tensor(np.array([0.2, -0.3, 0.1], np.float32).reshape(1, 3, 1, 1)))
        self.norm.running_var._reset(Tensor(np.array([0.5, 2.0, 1.0], np.float32).reshape(1, 3, 1, 1)))

    def forward(self, x):
        return self.conv(relu(self.norm(x)))


@pytest.mark.parametrize("config", CONFIGS)
def test_a_batch_norm_that_stands_alone(config):
    rng = np.random.default_rng(0)
    net, pictures = PreActivation().eval(), [rng.standard_normal((2, 3, 8, 8)).astype(np.float32) for _ in range(4)]
    module = graph_qat.prepare_qat(net, Tensor(pictures[0]), config=config)
    for x in pictures:
        module(Tensor(x))
    x = Tensor(pictures[0])
    simulated, integer = module.eval()(x).numpy(), module.convert()(x).numpy()
    exact = net(x).numpy()
    assert 0 < np.abs(simulated - exact).mean() < 0.06 * np.abs(exact).mean()  # moving averages cut single values off
    assert np.abs(simulated - integer).max() < 0.2 * np.abs(simulated - exact).max()


def test_sample_inputs_are_asked_for():
    with pytest.raises(OptionError, match="pass sample inputs"):
        graph_qat.prepare_qat(Net())
