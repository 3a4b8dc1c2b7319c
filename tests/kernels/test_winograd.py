"""Winograd's convolutions against sums of products in float64."""

import functools

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan, tensor
from megengine.dispatch import get_op
from megengine.kernels import _core, isa, winograd
from megengine.traced_module import trace_module
from tests.kernels.test_grouped import case
from tests.kernels.test_grouped import run as grouped_run

LEVELS = [level for level in isa.available() if isa.level(level) >= isa.level("avx2")]
SAME = ((1, 1), (1, 1))
run = functools.partial(grouped_run, kernel=winograd.own_winograd_conv2d)


def check(problem, arrays):
    want = get_op("fused_conv2d").reference(*(a.astype(np.float64) for a in arrays), **problem.attrs)
    scale = np.sqrt(np.prod(arrays[1].shape[1:])) * np.std(arrays[0]) * np.std(arrays[1])
    np.testing.assert_allclose(run(problem, arrays) / scale, want / scale, rtol=0, atol=2e-5)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("padding", [SAME, ((0, 0), (0, 0)), ((2, 1), (0, 3)), ((5, 0), (0, 6))])
@pytest.mark.parametrize("size", [(3, 3), (4, 7), (9, 6), (8, 12)])
def test_sizes_and_padding(level, size, padding):
    with isa.capped(level):
        check(*case(1, 5, 7, size, batch=2, padding=padding))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("channels", [1, 7, 8, 15, 16, 17, 31, 33, 64])
def test_channels(level, channels):
    """Of the input and the result, around whole vectors and panels of them."""
    with isa.capped(level):
        check(*case(1, channels, 20, (6, 5), padding=SAME))
        check(*case(1, 9, channels, (6, 5), padding=SAME))


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", ["none", "relu", "relu6", "silu", "hsigmoid"])
def test_activations(activation, residual):
    check(*case(1, 12, 40, (7, 9), padding=SAME, activation=activation, residual=residual))


@pytest.mark.parametrize("shape", [(16, 24, (13, 14)), (70, 40, (30, 29)), (8, 200, (5, 5)), (256, 128, (32, 32))])
def test_bits_depend_neither_on_threads_nor_on_the_instruction_set(shape):
    """Weights of the last shape are read once for all tiles, as they are too many for the cache and three blocks."""
    problem, arrays = case(1, *shape, padding=SAME, activation="relu", residual=True)
    want = run(problem, arrays)
    check(problem, arrays)
    for level in LEVELS:
        with isa.capped(level):
            for threads in (1, 2, 3, 5):
                np.testing.assert_array_equal(run(problem, arrays, threads), want)


def test_what_it_is_for():
    usable = winograd.own_winograd_conv2d.usable
    assert usable(case(1, 64, 64, (56, 56), padding=SAME)[0]) is None
    assert usable(case(1, 128, 128, (28, 28), batch=8, padding=SAME)[0]) is None
    assert "as fast directly" in usable(case(1, 512, 512, (7, 7), padding=SAME)[0])
    assert "as fast directly" in usable(case(1, 3, 64, (56, 56), padding=SAME)[0])
    assert "neighbours" in usable(case(1, 64, 64, (56, 56), stride=(2, 2))[0])
    assert "neighbours" in usable(case(1, 64, 64, (56, 56), dilation=(2, 2))[0])
    assert "neighbours" in usable(case(2, 32, 32, (56, 56))[0])
    assert "neighbours" in usable(case(1, 64, 64, (56, 56), kernel=(3, 1))[0])
    with isa.capped("sse41"):
        assert "needs AVX2" in usable(case(1, 64, 64, (56, 56), padding=SAME)[0])


class Net(M.Module):
    def __init__(self):
        super().__init__()
        self.a, self.c = M.Conv2d(32, 48, 3, padding=1), M.Conv2d(48, 32, 3, padding=1)

    def forward(self, x):
        return F.relu(self.c(F.relu(self.a(x))) + x)


@pytest.mark.parametrize("threads", [1, 2])
def test_plans_take_it(threads):
    net, x = Net().eval(), case(1, 32, 1, (40, 36))[1][0]
    made = plan.compile(trace_module(net, tensor(x)), threads=threads)
    assert [s.kernel for s in made.steps if "conv" in s.op] == ["own_winograd_conv2d"] * 2
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=0, atol=1e-4)


def test_wrong_arguments():
    arrays = case(1, 4, 4)[1]
    rest = {"in_size": (7, 9), "out_size": (7, 9), "before": (1, 1), "bias": arrays[2], "residual": False}
    rest |= {"after": None, "threads": 1}
    with pytest.raises(ValueError, match="winograd_step: weights"):
        _core.winograd_step(sizes=(1, 5, 4), weights=arrays[1], clamp="none", **rest)
    with pytest.raises(ValueError, match="no clamp soft"):
        _core.winograd_step(sizes=(1, 4, 4), weights=arrays[1], clamp="soft", **rest)
    with isa.capped("base"), pytest.raises(ValueError, match="expected AVX2"):
        _core.winograd_step(sizes=(1, 4, 4), weights=arrays[1], clamp="none", **rest)
