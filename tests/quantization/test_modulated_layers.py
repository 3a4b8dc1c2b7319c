"""Generators whose styles scale the channels of a layer, and are divided by their length (StyleGAN2)."""

import numpy as np

import megengine.functional as F
import megengine.module as M
from megengine import Parameter, Tensor
from megengine.quantization import quantize_model, verify
from megengine.traced_module import trace_module

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


class Modulated(M.Module):
    def __init__(self):
        super().__init__()
        self.style = M.Linear(16, 12)
        self.style.weight, self.style.bias = Parameter(normal(12, 16) * 0.05), Parameter(np.ones(12, np.float32))
        self.weight = Parameter(normal(8, 12, 3, 3) / 10)

    def forward(self, x, z):
        style = self.style(z)
        y = F.conv2d(x * style.reshape(-1, 12, 1, 1), self.weight, padding=1)
        power = F.matmul(style**2, (self.weight**2).sum(axis=(2, 3)).transpose(1, 0))
        return y * (1 / F.sqrt(power + 1e-8)).reshape(-1, 8, 1, 1)


def test_the_length_of_a_style_keeps_its_range():
    """1 / sqrt(x + 1e-8) changes most at 0, far below what was seen: all that was seen was cut to 0.009."""
    batches = [(normal(1, 12, 8, 8), normal(1, 16)) for _ in range(6)]
    net = Modulated()
    wanted = [net(Tensor(x), Tensor(z)).numpy() for x, z in batches]
    quantized = quantize_model(trace_module(net, *map(Tensor, batches[0])), batches)
    noise = np.mean([(quantized(*b).numpy() - y) ** 2 for b, y in zip(batches, wanted, strict=True)])
    assert 10 * np.log10(np.mean(np.square(wanted)) / noise) > 25
    assert verify(quantized, batches[:1]).exact
