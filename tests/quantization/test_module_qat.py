import pickle
import sys
from pathlib import Path

import numpy as np
import pytest

import megengine.module as M
import megengine.quantization as Q
from megengine.autodiff import GradManager
from megengine.serialization import load
from megengine.tensor import Tensor

DATA = Path(__file__).parents[1] / "data" / "megengine"
RECORDED = np.load(DATA / "quantization.npz")
sys.path.insert(0, str(DATA / "graphs"))
import nets  # noqa: E402


def random(*shape, seed=0):
    return Tensor(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


class Wrapped(M.Module):
    """QuantStub, some layers, DequantStub."""

    def __init__(self, *layers):
        super().__init__()
        self.quant, self.layers, self.dequant = M.QuantStub(), list(layers), M.DequantStub()

    def forward(self, *inputs):
        x = [self.quant(t) for t in inputs]
        x = self.layers[0](x) if isinstance(self.layers[0], M.Concat) else self.layers[0](*x)
        for layer in self.layers[1:]:
            x = layer(x)
        return self.dequant(x)


# ---------------------------------------------------------------- files of MegEngine


def test_network_trained_by_megengine():
    net = nets.ResFused()
    Q.quantize_qat(net)
    state = load(DATA / "res_fused_qat.state.pkl")
    assert list(net.state_dict()) == list(state)
    net.load_state_dict(state)
    net.eval()
    recorded = np.load(DATA / "graphs" / "res_fused_qat.npz")
    y = net(Tensor(recorded["in.0"])).numpy()
    np.testing.assert_allclose(y, recorded["out"], rtol=1e-5, atol=1e-5 * np.abs(recorded["out"]).max())

    quantized = Q.quantize(net, inplace=False).eval()
    np.testing.assert_array_equal(quantized(Tensor(recorded["in.0"])).numpy(), y)


def test_network_quantized_by_megengine():
    net = nets.ResFused()
    Q.quantize_qat(net)
    net.load_state_dict(load(DATA / "res_fused_qat.state.pkl"))
    net = Q.quantize(net).eval()
    with open(DATA / "res_fused_q.state.pkl", "rb") as file:
        state = pickle.load(file)
    mine = net.state_dict()
    assert list(mine) == list(state)
    for name, value in state.items():
        assert mine[name].dtype.metadata == value.dtype.metadata
        np.testing.assert_allclose(mine[name], value, rtol=0, atol=0 if value.dtype == np.int8 else 1e-7)
    for parameter in net.parameters():
        if parameter.dtype != np.float32:
            parameter._reset(
                Tensor(
                    np.zeros(parameter.shape, np.int8),
                    dtype=Q.create_qparams(dtype_meta="qint8", scale=Tensor(1.0)).dtype,
                )
            )
    net.load_state_dict(state)
    recorded = np.load(DATA / "graphs" / "res_fused_q.npz")
    y = net(Tensor(recorded["in.0"])).numpy()
    np.testing.assert_allclose(y, recorded["out"], rtol=1e-5, atol=1e-5 * np.abs(recorded["out"]).max())


# ---------------------------------------------------------------- batch norm


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
