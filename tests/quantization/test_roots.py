"""Norms that are spelled out in ways that no integer op has: what leads to a root of sums stays in float."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import Tensor, random
from megengine.quantization import quantize_model, verify
from megengine.traced_module import trace_module

GAIN = np.linspace(0.5, 2, 32, dtype=np.float32)


def power_less_mean(x):
    """Over the channels, as Flax has it."""
    mean, power = (F.sum(v, 1, keepdims=True) * (1 / v.shape[1]) for v in (x, x * x))
    return (x - mean) * (1 / F.sqrt(F.maximum(power - mean * mean, 0) + 1e-6))


def gain_in_the_root(x):
    """RMSNorm, whose gain is multiplied into the inverse root."""
    rows = F.transpose(x, (0, 2, 3, 1))
    inverse = 1 / F.sqrt(F.mean(rows * rows, -1, keepdims=True) + 1e-6)
    return F.transpose(rows * (inverse * Tensor(GAIN)), (0, 3, 1, 2))


def response(x):
    """Global response normalization of ConvNeXt V2: a mean of roots, too."""
    root = F.sqrt(F.sum(x**2, (2, 3), keepdims=True))
    return x * (root / (F.mean(root, 1, keepdims=True) + 1e-6)) + x


def deviation(x):
    """Mean and deviation, as layers of style statistics have them."""
    mean = F.mean(x, (2, 3), keepdims=True)
    return 3 * mean + (F.maximum(F.mean(x * x, (2, 3), keepdims=True) - mean * mean, 0) + 1e-5) ** 0.5


def shares(x):
    """A softmax over places whose largest element is not taken away first."""
    e = F.exp(4 * x)
    return e / F.sum(e, (2, 3), keepdims=True)


def shares_of_squares(x):
    e = F.relu(x) * F.relu(x)
    return e * (1 / (F.sum(e, 1, keepdims=True) + 1e-4))


class Net(M.Module):
    def __init__(self, between):
        super().__init__()
        self.first, self.between, self.last = M.Conv2d(3, 32, 3, padding=1), between, M.Conv2d(32, 8, 1)

    def forward(self, x):
        return self.last(self.between(F.gelu(self.first(x))))


def quantized(between):
    random.seed(1)
    rng = np.random.default_rng(0)
    data = [(rng.normal(0, rng.uniform(0.3, 3), (1, 3, 8, 8)).astype(np.float32),) for _ in range(12)]
    traced = trace_module(Net(between).eval(), Tensor(data[0][0]))
    return quantize_model(traced, data[:8]), data[8:]


@pytest.mark.parametrize(
    ("between", "least"),
    [
        (power_less_mean, 28),
        (gain_in_the_root, 23),
        (response, 25),
        (deviation, 39),
        (shares, 26),
        (shares_of_squares, 26),
    ],
)
def test_a_norm_of_another_form_is_as_exact_as_its_layers(between, least):
    model, held_out = quantized(between)
    assert model.analyze(held_out).output_sqnr_db > least
    assert verify(model, held_out[:2]).exact
    assert len(model.annotation.weights) == 2
    assert any("whose sums need more bits" in why for why in model.annotation.floating.values())


def test_what_is_no_norm_stays_in_integers():
    """Roots of data, squares that are summed without a root, and norms with an integer op."""
    for between in (
        lambda x: F.sqrt(F.abs(x) + 1),
        lambda x: x + F.mean(x * x, (2, 3), keepdims=True),
        lambda x: F.nn.layer_norm(x, (32, 8, 8), affine=False),
    ):
        model, _ = quantized(between)
        assert not model.report.floating and not any(
            "norm that is spelled out" in why for why in model.annotation.floating.values()
        )
