"""What plans make one step of: repeated elements, activations whose factors would go elsewhere."""

import math

import numpy as np
import pytest

import megengine.functional as F
from megengine import plan
from megengine.module import Linear, Module
from megengine.quantization import quantize_model
from megengine.random import seed
from megengine.tensor import tensor
from megengine.traced_module import trace_module


class Function(Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def compiled(function, *shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    net = Function(function)
    made = plan.compile(trace_module(net, tensor(x)))
    np.testing.assert_array_equal(made(x)[0], net(tensor(x)).numpy())
    return [info.op for info in made.steps if not info.kernel.startswith("own_layout")]


def larger(x, *counts):
    for axis, count in enumerate(counts):
        x = F.repeat(x, count, axis)
    return x


@pytest.mark.parametrize(
    ("shape", "counts"),
    [((2, 3, 4, 5), (1, 1, 2, 2)), ((1, 17, 3, 4), (1, 2, 1, 3)), ((5, 6), (2, 3)), ((2, 1, 3), (1, 4, 2))],
)
def test_repeated_axes_are_one_step(shape, counts):
    assert compiled(lambda x: larger(x, *counts), *shape) == ["fused_repeat"]


def test_repeated_parts_of_an_axis():
    def blocks(x):  # a b a b, not a a b b
        return F.broadcast_to(F.reshape(x, (1, 4, 6)), (3, 4, 6)).reshape(12, 6)

    assert "fused_repeat" not in compiled(blocks, 4, 6)
    assert compiled(lambda x: F.repeat(F.reshape(x, (2, 12)), 2, 1), 4, 6) == ["fused_repeat"]


class Upsampled(Module):
    def __init__(self):
        super().__init__()
        self.a = F.conv2d

    def forward(self, x, w, v):
        return self.a(larger(F.relu(self.a(x, w)), 1, 1, 2, 2), v)


def test_repeated_integers_stay_exact():
    rng = np.random.default_rng(1)
    weights = [tensor(rng.standard_normal(s).astype(np.float32)) for s in ((8, 3, 3, 3), (4, 8, 3, 3))]
    net = Function(lambda x: Upsampled()(x, *weights))
    data = [tensor(rng.standard_normal((1, 3, 9, 9)).astype(np.float32)) for _ in range(2)]
    quantized = quantize_model(trace_module(net, data[0]), data)
    made = plan.compile(quantized.traced())
    assert [info.kernel for info in made.steps].count("own_strided_fused_repeat") == 1
    np.testing.assert_array_equal(made(data[0].numpy())[0], quantized(data[0]).numpy())


class Gelu(Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Linear(6, 40), Linear(40, 6)

    def forward(self, x):
        y = self.up(x)
        return self.down(y * (F.erf(y / math.sqrt(2)) + 1) * 0.5)


def test_a_spelled_out_gelu_keeps_its_factor():
    """The half is not folded into the weight of the layer behind."""
    seed(0)
    net, x = Gelu(), np.random.default_rng(2).standard_normal((7, 6)).astype(np.float32)
    made = plan.compile(trace_module(net, tensor(x)))
    assert [info.op for info in made.steps] == ["fused_linear", "fused_linear", "to_result"]
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-6)
