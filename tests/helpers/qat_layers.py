"""Layers between a QuantStub and a DequantStub, trained a little: networks of the tests of QAT modules."""

import numpy as np

import megengine.functional as F
import megengine.module as M
import megengine.quantization as Q
from megengine.tensor import Tensor

CONFIGS = {
    "ema": Q.ema_fakequant_qconfig,
    "minmax": Q.min_max_fakequant_qconfig,
    "lowbit": Q.ema_lowbit_fakequant_qconfig,
    "sync": Q.sync_ema_fakequant_qconfig,
}


def random(*shape, seed=0):
    return Tensor(np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32))


class Turned(M.Module):
    """Ops that only move values."""

    def forward(self, x):
        x = F.pad(x, ((0, 0), (0, 0), (1, 0), (0, 0)))
        x = F.transpose(F.split(x, 2, axis=1)[0], (0, 2, 3, 1))[:, :, 1:]
        return x.reshape(x.shape[0], 5, 3, -1)


class Wrapped(M.Module):
    """QuantStub, some layers, DequantStub."""

    def __init__(self, *layers):
        super().__init__()
        self.quant, self.layers, self.dequant = M.QuantStub(), list(layers), M.DequantStub()

    def forward(self, *inputs):
        x = [self.quant(t) for t in inputs]
        x = self.layers[0](x) if type(self.layers[0]).__name__ == "Concat" else self.layers[0](*x)
        for layer in self.layers[1:]:
            x = layer(x)
        return self.dequant(x)


def trained_steps(net, inputs):
    """A few steps in training mode, so that scales and statistics are those of real use."""
    net.train()
    for _ in range(3):
        net(*inputs)
    return net.eval()


def check_simulation(net, inputs, qconfig):
    net = trained_steps(Q.quantize_qat(net, qconfig=qconfig), inputs)
    simulated = net(*inputs).numpy()
    assert len(np.unique(simulated)) > 2
    executed = Q.quantize(net).eval()(*inputs).numpy()
    np.testing.assert_array_equal(executed, simulated)
