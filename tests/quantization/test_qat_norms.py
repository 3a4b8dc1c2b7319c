"""Batch norms in training aware of quantization: as part of a layer, and alone."""

from pathlib import Path

import numpy as np
import pytest
from qat_layers import CONFIGS, Wrapped, check_simulation, random, trained_steps

import megengine.module as M
import megengine.module.quantized as QM
import megengine.quantization as Q
from megengine.autodiff import GradManager
from megengine.core.errors import OptionError
from megengine.tensor import Tensor

RECORDED = np.load(Path(__file__).parents[1] / "data" / "megengine" / "quantization.npz")


def bn_net(kind):
    layer = M.ConvBnRelu2d(3, 4, 3, padding=1) if kind == "ConvBnRelu2d" else M.LinearBn1d(6, 4)
    net = M.Module()
    net = Wrapped(layer)
    state = {}
    for key in RECORDED.files:
        prefix = f"bn.{kind}.state."
        if key.startswith(prefix):
            state[key.removeprefix(prefix).replace("layer.", "layers.0.")] = RECORDED[key]
    net.load_state_dict(state)
    return Q.quantize_qat(net)


@pytest.mark.parametrize("kind", ["ConvBnRelu2d", "LinearBn1d"])
def test_batch_norm_trains_as_in_megengine(kind):
    net = bn_net(kind).train()
    xs, cts = RECORDED[f"bn.{kind}.x"], RECORDED[f"bn.{kind}.ct"]
    for step in range(3):
        parameters = dict(net.named_parameters())
        with GradManager().attach(list(parameters.values())) as manager:
            y = net(Tensor(xs[step]))
            manager.backward((y * Tensor(cts[step])).sum())
        np.testing.assert_allclose(y.numpy(), RECORDED[f"bn.{kind}.y{step}"], atol=2e-6)
        for name, p in parameters.items():
            key = f"bn.{kind}.grad{step}." + name.replace("layers.0.", "layer.")
            if key in RECORDED.files:
                recorded = RECORDED[key].reshape(p.shape)
                np.testing.assert_allclose(p.grad.numpy(), recorded, rtol=1e-4, atol=2e-4, err_msg=key)
            p.grad = None
    for name, value in net.state_dict().items():
        if name == "layers.0.bias":
            continue  # LinearBn1d's, which nothing reads
        key = f"bn.{kind}.after." + name.replace("layers.0.", "layer.")
        np.testing.assert_allclose(value, RECORDED[key], rtol=1e-5, atol=1e-6, err_msg=key)
    net.eval()
    y = net(Tensor(xs[0])).numpy()
    np.testing.assert_allclose(y, RECORDED[f"bn.{kind}.eval"], atol=2e-6)
    quantized = Q.quantize(net).eval()(Tensor(xs[0])).numpy()
    np.testing.assert_array_equal(quantized, y)
    np.testing.assert_allclose(quantized, RECORDED[f"bn.{kind}.quantized"], atol=2e-6)


def test_batch_norm_of_vectors():
    check_simulation(Wrapped(M.LinearBn1d(9, 7), M.LinearBnRelu1d(7, 5)), [random(20, 9)], CONFIGS["ema"])


def test_a_batch_norm_with_factor_zero_trains():
    layer = M.ConvBn2d(4, 6, 3)
    layer.bn.weight._reset(Tensor(np.zeros((1, 6, 1, 1), np.float32)))
    net = trained_steps(Q.quantize_qat(Wrapped(layer)), [random(2, 4, 9, 9)])
    assert np.isfinite(net.layers[0].bn.running_var.numpy()).all()


class Head(M.Module):
    """Real layers behind the quantized ones."""

    def __init__(self):
        super().__init__()
        self.body, self.norm = Wrapped(M.Conv2d(4, 4, 3, padding=1)), M.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.body(x))


def test_a_batch_norm_of_real_numbers_stays_as_it_is():
    net, x = Head(), random(3, 4, 8, 8)
    trained_steps(net, [x])
    state = net.norm.state_dict()
    net = trained_steps(Q.quantize_qat(net), [x])
    body, norm = net.body(x).numpy(), M.BatchNorm2d(4)
    norm.load_state_dict({k: v for k, v in net.norm.state_dict().items() if k in state})
    np.testing.assert_array_equal(net(x).numpy(), norm.eval()(Tensor(body)).numpy())
    simulated = net(x).numpy()
    np.testing.assert_array_equal(Q.quantize(net).eval()(x).numpy(), simulated)


def test_a_calibrated_batch_norm_has_a_range():
    net, x = (
        Q.quantize_qat(Wrapped(M.BatchNorm2d(4), M.Conv2d(4, 4, 3, padding=1)), qconfig=Q.calibration_qconfig).eval(),
        random(3, 4, 8, 8),
    )
    exact = net(x).numpy()
    Q.enable_observer(net)
    net(x)
    y = Q.quantize(net).eval()(x).numpy()
    assert np.abs(y - exact).max() < 0.05 * np.abs(exact).max()


def test_a_batch_norm_without_a_scale_is_named():
    net = Wrapped(M.BatchNorm2d(4))
    Q.quantize_qat(net, qconfig=Q.passive_qconfig)
    params = Q.create_qparams(dtype_meta="qint8", scale=Tensor(0.1))
    net.quant.act_observer.set_qparams(params)
    net = Q.quantize(net).eval()
    with pytest.raises(OptionError, match=r"BatchNorm2d: it has no dtype of its result"):
        net(random(3, 4, 8, 8))
    made = QM.BatchNorm2d(4, dtype=params.dtype).eval()
    x = Tensor(np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2) / 10).astype(params.dtype)
    np.testing.assert_array_equal(made(x).numpy(), x.numpy())


@pytest.mark.parametrize("how", ["evaluation", "frozen"])
@pytest.mark.parametrize("kind", ["ConvBn2d", "ConvTransposeBnRelu2d", "LinearBn1d"])
def test_a_batch_norm_that_is_held_uses_its_statistics(kind, how):
    """As in MegEngine 1.13, where scripts hold them by `bn.eval()` or `bn.freeze = True`."""
    sizes = (6, 4) if "Linear" in kind else (6, 4, 3)
    x = random(5, 6) if "Linear" in kind else random(2, 6, 7, 7)
    net = trained_steps(Q.quantize_qat(Wrapped(getattr(M, kind)(*sizes))), [x])
    expected, layer = net(x).numpy(), net.layers[0]
    state = layer.bn.state_dict()
    net.train()
    Q.disable_observer(net)
    if how == "frozen":
        layer.bn.freeze = True
    else:
        layer.bn.eval()
    np.testing.assert_allclose(net(x).numpy(), expected, atol=1e-6)
    assert all(np.array_equal(value, layer.bn.state_dict()[name]) for name, value in state.items())
