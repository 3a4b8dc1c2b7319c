import numpy as np
import pytest
from quant_nets import concat_net, residual_net

from megengine.autodiff import GradManager
from megengine.core.errors import CalibrationError, OptionError, QuantizationError
from megengine.dispatch import apply
from megengine.module import Conv2d, Module
from megengine.quantization import qat, qconfig
from megengine.quantization.config import QuantConfig
from megengine.quantization.model import quantize_model
from megengine.tensor import Tensor

PRESETS = [qconfig.min_max_fakequant_qconfig, qconfig.ema_fakequant_qconfig, qconfig.per_channel_fakequant_qconfig]


def observed(net=residual_net, preset=PRESETS[0]):
    b, graph = net()
    module = qat.quantize_qat(graph, qconfig=preset)
    for x in b.data():
        module(Tensor(x))
    return b, graph, module.eval()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("net", [residual_net, concat_net])
def test_conversion_runs_what_was_simulated(net, preset):
    b, _, module = observed(net, preset)
    x = Tensor(b.data(1, seed=4)[0])
    simulated, integer = module(x).numpy(), qat.quantize(module)(x).numpy()
    qat.disable_fake_quant(module)
    exact = module(x).numpy()
    assert np.abs(simulated - integer).max() < 0.2 * np.abs(simulated - exact).max()


def test_same_network_as_post_training_quantization():
    b, graph, module = observed()
    config = qconfig.min_max_fakequant_qconfig.config
    assert isinstance(config, QuantConfig)
    qat.disable_fake_quant(module)
    fresh = qat.quantize_qat(graph, qconfig=qconfig.QConfig(config, fake_quant=False))
    for x in b.data():
        fresh(Tensor(x))
    x = Tensor(b.data(1, seed=4)[0])
    wanted = quantize_model(graph, b.data(), config)(x).numpy()
    np.testing.assert_array_equal(qat.quantize(fresh)(x).numpy(), wanted)


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
    qat.disable_observer(module)
    module(Tensor(b.data(1)[0]))
    assert before == {k: s.count for k, s in module._stats.items()}
    qat.enable_observer(module)
    module(Tensor(b.data(1)[0]))
    assert before != {k: s.count for k, s in module._stats.items()}


def test_observer_that_saw_nothing():
    _, graph = residual_net()
    with pytest.raises(CalibrationError, match="no value reached 'x'"):
        qat.quantize(qat.quantize_qat(graph))


def test_reset_and_propagate():
    _, _, module = observed()
    qat.propagate_qconfig(module, qconfig.per_channel_fakequant_qconfig)
    assert module._annotation.weights["stem"].axis == 0
    qat.quantize(module)
    qat.reset_qconfig(module, qconfig.calibration_qconfig)
    assert not module.fake_quantizing
    with pytest.raises(CalibrationError, match="no value reached"):
        qat.quantize(module)
    qat.enable_fake_quant(module)
    assert module.fake_quantizing


class Net(Module):
    def __init__(self):
        super().__init__()
        self.conv = Conv2d(3, 4, 3)

    def forward(self, x):
        return apply("relu", self.conv(x))


def test_module_is_captured():
    x = Tensor(np.random.default_rng(0).normal(size=(1, 3, 6, 6)).astype(np.float32))
    module = qat.quantize_qat(Net(), x)
    module(x)
    module.eval()
    assert qat.quantize(module)(x).shape == (1, 4, 4, 4)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: qat.quantize_qat(Net()), OptionError, "pass sample inputs"),
        (lambda: qat.quantize(Net()), QuantizationError, "expected the result of quantize_qat, got Net"),
        (lambda: qat.reset_qconfig(Net(), PRESETS[0], inplace=False), OptionError, "inplace=False is not available"),
    ],
)
def test_wrong_calls(call, error, message):
    with pytest.raises(error, match=message):
        call()
