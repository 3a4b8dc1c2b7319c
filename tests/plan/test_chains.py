"""Elementwise ops in a row run as one step, with the same bits as one by one."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.kernels import isa
from megengine.tensor import Tensor, tensor
from megengine.traced_module import trace_module


class Function(M.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def steps(function, *inputs):
    """The ops of a plan's steps but those that only move; results are those of eager calls, bit for bit."""
    net = Function(function)
    made = plan.compile(trace_module(net, *map(tensor, inputs)))
    want = net(*map(tensor, inputs))
    for got, value in zip(made(*inputs), want if isinstance(want, tuple) else (want,), strict=True):
        np.testing.assert_array_equal(got, value.numpy())
    assert all(info.kernel != "reference" for info in made.steps)
    return [info.op for info in made.steps if info.op not in ("to_result", "to_rows", "to_channels_last")]


def test_a_chain_is_one_step():
    assert steps(lambda x, y: F.exp(-((x - y) ** 2)) * 0.5 + F.tanh(x), draw(3, 40, 7), draw(7)) == ["elementwise"]


def test_values_used_twice_inside_are_computed_once():
    def forward(x):
        y = x * 2 + 1
        return y * F.sigmoid(y) - y

    assert steps(forward, draw(2, 3, 9, 8)) == ["elementwise"]


def test_results_and_values_used_elsewhere_stay():
    def forward(x):
        y = x + 1
        return y * 2, F.sum(y, axis=1)

    assert sorted(steps(forward, draw(4, 5))) == ["add", "mul", "sum"]


def test_what_is_smaller_is_not_repeated_for_every_element():
    assert steps(lambda x, s: x / F.sqrt(s + 1e-5), draw(6, 50), np.abs(draw(6, 1))) == ["elementwise", "div"]


def test_types_may_change_inside():
    def forward(x, y):
        return F.where(F.logical_and(x > y, x < 1), x, Tensor(0.0)) + (x > 0).astype("float32")

    assert steps(forward, draw(4, 5), draw(4, 1)) == ["elementwise"]


@pytest.mark.parametrize("count", [10, 120])
def test_long_chains_are_cut(count):
    def forward(x):
        for k in range(count):
            x = x * 0.5 + k
        return x

    assert len(steps(forward, draw(33))) <= -(-2 * count // 30)


def test_many_operands_are_cut():
    def forward(*xs):
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    assert 2 <= len(steps(forward, *(draw(5, seed=k) for k in range(40)))) <= 3


def every_link(x, y, mask):
    """Each operation that stays in registers, with values that are read once, twice and much later."""
    first = F.relu(x) + F.abs(y) * x
    second = F.where(mask, first, F.maximum(x, -y)) / (F.square(y) + 1)
    third = F.where(x > y, F.minimum(second, x), F.clip(first, -0.5, 1.5) - y)
    last = F.relu6(third) * F.sigmoid(x) + F.where(first <= second, F.tanh(third), F.softplus(x))
    last = last + F.gelu(x) * F.silu(y) - F.leaky_relu(third, 0.1) + F.exp(-F.abs(x))
    return F.hswish(last) + F.sqrt(F.abs(y)) * F.where(x == y, x, F.hsigmoid(last))


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [1, 17, 65, 1100])
def test_every_link_has_the_bits_of_its_op(size, dtype, level):
    x, y = draw(size), draw(size, seed=1)
    x[:5], y[1:3] = [0.0, -0.0, np.nan, np.inf, -np.inf][:size], x[1:3]
    inputs = [tensor(x).astype(dtype), tensor(y).astype(dtype), tensor(x > 0.3)]
    net = Function(every_link)
    made = plan.compile(trace_module(net, *inputs))
    with isa.capped(level):
        capped = plan.compile(trace_module(net, *inputs))
    for one in (made, capped):
        assert all(s.kernel != "reference" for s in one.steps)
        (got,) = one(*(value.numpy() for value in inputs))
        np.testing.assert_array_equal(got.astype(np.float32), net(*inputs).numpy().astype(np.float32))


def test_numbers_that_are_halves_round_once():
    """A cast of what is a bfloat16 number already changes nothing, and is left out."""
    x = np.concatenate([draw(1000), [0, -0.0, 1e-40, -1e-40, 3.4e38, np.inf, -np.inf]]).astype(np.float32)

    def forward(x):
        half = x.astype("bfloat16")
        return (F.relu(half) + F.clip(F.abs(half), 0.5, 0.7) * F.maximum(half, -half)).astype("float32")

    assert steps(forward, x) == ["elementwise"]


@pytest.mark.parametrize("level", isa.available())
def test_chains_round_every_number_as_casts_do(level):
    rng = np.random.default_rng(8)
    x = rng.integers(0, 1 << 32, 40_000, dtype=np.uint32).view(np.float32)
    x[:2000] = rng.integers(0, 1 << 23, 2000, dtype=np.uint32).view(np.float32)  # subnormal numbers
    x[1000:2000] *= -1
    x[2000:4000] = (rng.integers(0, 1 << 16, 2000, dtype=np.uint32) << 16 | 0x8000).view(np.float32)  # between two
    with isa.capped(level):
        made = plan.compile(trace_module(Function(lambda x: (-x).astype("bfloat16").astype("float32")), tensor(x)))
        (got,) = made(x)
    assert [s.op for s in made.steps] == ["elementwise"]
    with np.errstate(invalid="ignore"):
        want = (-x).astype(bfloat16).astype(np.float32)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(got[number].view(np.uint32), want[number].view(np.uint32))
    assert np.isnan(got[~number]).all()
