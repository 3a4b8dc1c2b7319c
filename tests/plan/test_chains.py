"""Elementwise ops in a row run as one step, with the same bits as one by one."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
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
