"""What plans make one step of: repeated elements, activations whose factors would go elsewhere."""

import math

import numpy as np
import pytest

import megengine.functional as F
from megengine import plan
from megengine.module import Conv3d, Linear, Module
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


@pytest.mark.parametrize(
    ("shape", "size", "op"),
    [
        ((2, 3, 4, 5), (8, 5), "fused_repeat"),
        ((1, 17, 1, 3), (7, 9), "fused_repeat"),
        ((2, 3, 4, 5), (8, 6), "resize"),
        ((2, 3, 4, 6), (8, 3), "resize"),
    ],
)
def test_nearest_elements_of_whole_factors_are_repeated(shape, size, op):
    assert compiled(lambda x: F.vision.interpolate(x, size=size, mode="nearest"), *shape) == [op]


def test_linear_resizing_is_none_of_it():
    assert compiled(lambda x: F.vision.interpolate(x, size=(8, 10)), 2, 3, 4, 5) == ["resize"]


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
    assert [info.op for info in made.steps] == ["fused_linear", "fused_linear"]
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


_COMPUTING = ("matmul", "fused_linear", "add", "gelu", "relu")


class Block(Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Linear(8, 24), Linear(24, 8)

    def forward(self, x):
        y = x + self.down(F.gelu(self.up(x)))
        return F.relu(self.down(F.gelu(self.up(y))) + y)


@pytest.mark.parametrize("shape", [(7, 8), (2, 5, 8), (2, 3, 5, 8)])
def test_linear_layers_add_what_is_added_to_them(shape):
    seed(0)
    net, x = Block(), np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    made = plan.compile(trace_module(net, tensor(x)))
    assert [info.op for info in made.steps if info.op in _COMPUTING] == ["fused_linear"] * 4
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-5)


def test_of_two_linear_layers_that_are_added_the_later_one_takes_the_sum():
    seed(0)
    up, down = Linear(8, 6), Linear(8, 6)
    net, x = Function(lambda x: up(x) + down(x)), np.random.default_rng(3).standard_normal((5, 8)).astype(np.float32)
    made = plan.compile(trace_module(net, tensor(x)))
    assert [info.op for info in made.steps if info.op in _COMPUTING] == ["fused_linear"] * 2
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_sums_that_others_read_or_that_spread_are_not_fused():
    seed(0)
    layer, x = Linear(8, 8), np.random.default_rng(3).standard_normal((5, 8)).astype(np.float32)
    spread = tensor(np.ones((2, 5, 8), np.float32))
    for function in (lambda x: (lambda y: (y + x) * y)(layer(x)), lambda x: layer(x) + spread):
        made = plan.compile(trace_module(Function(function), tensor(x)))
        assert "elementwise" in [info.op for info in made.steps] or "add" in [info.op for info in made.steps]
        np.testing.assert_allclose(made(x)[0], function(tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", [F.relu, F.gelu])
@pytest.mark.parametrize("groups", [1, 2])
def test_volumes_take_their_activation(activation, groups):
    seed(0)
    layer = Conv3d(4, 6, 3, padding=1, groups=groups)
    net, x = Function(lambda x: activation(layer(x))), np.random.default_rng(4).standard_normal((2, 4, 5, 6, 7))
    x = x.astype(np.float32)
    made = plan.compile(trace_module(net, tensor(x)))
    layers = [info.op for info in made.steps if info.op in ("conv3d", "fused_conv3d", "relu", "gelu", "elementwise")]
    assert layers == ["fused_conv3d"]
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-5, atol=1e-5)


def shuffled(x, groups):
    n, c, h, w = x.shape
    return F.transpose(x.reshape(n, groups, c // groups, h, w), (0, 2, 1, 3, 4)).reshape(n, c, h, w)


def windows(x):
    n, c, h, w = x.shape
    return F.transpose(x.reshape(n, c, h // 2, 2, w // 2, 2), (0, 2, 4, 1, 3, 5)).reshape(-1, c, 2, 2)


@pytest.mark.parametrize(
    "move", [lambda x: shuffled(x, 3), lambda x: F.pixel_shuffle(x, 2), windows], ids=["channels", "pixels", "windows"]
)
@pytest.mark.parametrize("shape", [(2, 12, 4, 6), (1, 12, 2, 2)])
def test_shuffles_are_one_step(move, shape):
    assert compiled(move, *shape) == ["fused_rearrange"]


def test_moves_that_cut_elsewhere_stay_apart():
    mixed = compiled(lambda x: F.transpose(x.reshape(2, 8, 6, 6), (0, 2, 1, 3)).reshape(2, 12, 4, 6), 2, 12, 4, 6)
    assert "fused_rearrange" not in mixed


def test_shuffles_between_layers_take_values_as_they_lie():
    w, v = (tensor(np.random.default_rng(s).standard_normal((12, 12, 1, 1)).astype(np.float32)) for s in (1, 2))
    x = tensor(np.random.default_rng(0).standard_normal((1, 12, 24, 24)).astype(np.float32))
    net = Function(lambda x: F.conv2d(shuffled(F.conv2d(x, w), 4), v))
    made = plan.compile(trace_module(net, x))
    assert [info.op for info in made.steps].count("to_channels_last") == 1
    np.testing.assert_allclose(made(x.numpy())[0], net(x).numpy(), rtol=1e-4, atol=1e-4)
