"""Layers of few weights run for one picture of a batch after the other: the same results, by any number of threads."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.dispatch import apply
from megengine.kernels import _core, isa
from megengine.plan import pictures
from megengine.plan.pictures import parts
from megengine.quantization import QuantConfig, quantize_model, to_half
from megengine.tensor import tensor
from megengine.traced_module import lower, record, trace_module

N, SIDE = 3, 64  # values of 16 channels exceed the cache


def draw(*shape):
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


class Net(M.Module):
    """Convolutions, a residual, pooling, gates, joined values, and a tail that takes the whole batch."""

    def __init__(self):
        super().__init__()
        self.first, self.deep = M.Conv2d(3, 32, 3, padding=1), M.Conv2d(32, 32, 3, padding=1, groups=32)
        self.point, self.gate, self.last = M.Conv2d(32, 32, 1), M.Conv2d(32, 32, 1), M.Linear(64, 5)

    def forward(self, x):
        x = F.relu(self.first(x))
        y = F.silu(self.point(F.hswish(self.deep(x)))) + x
        y = y * F.sigmoid(self.gate(F.avg_pool2d(y, SIDE)))
        y = F.concat([F.max_pool2d(y, 2), F.avg_pool2d(x, 2)], axis=1)
        return self.last(F.mean(y, axis=(2, 3)))


def ops(made):
    return [s.op for s in made.steps]


@pytest.mark.parametrize("level", isa.available())
def test_the_results_of_a_batch(level):
    net, x = Net().eval(), draw(N, 3, SIDE, SIDE)
    with isa.capped(level):
        made = plan.compile(trace_module(net, tensor(x)))
        assert ops(made)[0] == "each_picture" and "fused_conv2d" not in ops(made)
        got = made(x)[0]
        np.testing.assert_allclose(got, net(tensor(x)).numpy(), rtol=1e-4, atol=1e-5)
        for threads in (2, 3, 5):
            np.testing.assert_array_equal(plan.compile(trace_module(net, tensor(x)), threads=threads)(x)[0], got)
    assert len(made.profile(x, repeat=1)) == len(made.steps)


@pytest.mark.skipif("bf16" not in isa.available(), reason="no instructions for bfloat16")
def test_a_batch_of_bfloat16():
    net, x = Net().eval(), draw(N, 3, SIDE, SIDE)
    made = plan.compile(to_half(trace_module(net, tensor(x)), bfloat16))
    assert "each_picture" in ops(made)
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), atol=2.0**-6)


def test_a_tuned_plan():
    net, x = Net().eval(), draw(N, 3, SIDE, SIDE)
    made = plan.compile(trace_module(net, tensor(x)), tune=True)
    assert "each_picture" in ops(made)
    np.testing.assert_allclose(made(x)[0], net(tensor(x)).numpy(), rtol=1e-4, atol=1e-5)


def check(function, *arrays, threads=1):
    """The bits of eager calls; returns the ops of the plan's steps."""
    made = plan.compile(record(function, [tensor(a).spec for a in arrays]), threads=threads)
    wanted = function(*map(tensor, arrays))
    for got, want in zip(made(*arrays), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        np.testing.assert_array_equal(got, want.numpy())
    return ops(made)


X = draw(N, 32, SIDE, SIDE)
PAIR = {"kernel": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0))}


def pooled(x):
    return apply("max_pool2d", F.exp(x), **PAIR)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (pooled(x), pooled(pooled(x))),  # a result in the middle, which is read on
        lambda x: F.abs(pooled(x)) * draw(1, 32, 1, 1) + pooled(x) * draw(32),
        lambda x: F.transpose(pooled(F.transpose(x, (0, 2, 3, 1))), (0, 3, 1, 2)),
        lambda x: F.exp(
            apply("pad", x, widths=((0, 0), (0, 0), (1, 1), (0, 0)), mode="constant", value=1.0)
        ),  # in rows
        lambda x: F.mean(pooled(x), axis=(1, 2), keepdims=True),
        lambda x: F.concat([pooled(x), pooled(x * 2)], axis=3),
    ],
)
def test_ends_of_every_kind(function, threads):
    assert "each_picture" in check(function, X, threads=threads)


def test_two_inputs():
    assert "each_picture" in check(lambda x, y: (pooled(x + y), pooled(x) - pooled(y)), X, draw(*X.shape) + 1)


@pytest.mark.parametrize(
    "across",
    [
        lambda x: F.softmax(x, axis=0),
        lambda x: F.cumsum(x, axis=0),
        lambda x: x[::-1],
        lambda x: F.concat([x, x], axis=0),
        lambda x: x - F.mean(x, axis=0, keepdims=True),
        lambda x: x * draw(N, 1, 1, 1),
        lambda x: apply("pad", x, widths=((0, 1), (0, 0), (0, 0), (0, 0)), mode="constant", value=0.0),
    ],
)
def test_what_other_pictures_take_part_in_is_computed_for_all(across):
    graph = record(lambda x: pooled(pooled(across(x))), [tensor(X).spec])
    plan.compile(graph)
    assert all(e.op in ("exp", "max_pool2d") for part in parts(graph) for e in part.exprs)
    check(lambda x: pooled(pooled(across(x))), X)


def test_few_values_and_many_weights_take_the_batch():
    def ops_of(net, x):
        return ops(plan.compile(lower(trace_module(net.eval(), tensor(x)))))

    small = M.Sequential(M.Conv2d(3, 8, 3), M.ReLU(), M.Conv2d(8, 8, 3))
    assert "each_picture" not in ops_of(small, draw(N, 3, 16, 16))
    assert "each_picture" not in ops_of(small, draw(1, 3, 256, 256))
    heavy = M.Sequential(M.Conv2d(512, 512, 3, padding=1), M.Conv2d(512, 512, 3, padding=1))
    assert "each_picture" not in ops_of(heavy, draw(16, 512, 7, 7))


def test_steps_that_cannot_be_part_of_another_plan():
    empty = _core.Plan(64, 1)
    with pytest.raises(ValueError, match="no more of them than pictures"):
        _core.each_picture_step([], 2)
    with pytest.raises(ValueError, match="no more of them than pictures"):
        _core.each_picture_step([empty, empty], 1)
    calling = _core.Plan(64, 1)
    calling.add_call(lambda addresses: None, [])
    with pytest.raises(ValueError, match="a step that no other plan can run"):
        _core.each_picture_step([calling], 2)
    many = _core.Plan(64, 1)
    for _ in range(65):
        many.add_input(4)
    with pytest.raises(ValueError, match="too many ends"):
        _core.each_picture_step([many], 2)


class Integers(M.Module):
    """Every op of integers that pictures go through alone, and a tail that takes the whole batch."""

    def __init__(self):
        super().__init__()
        self.first, self.deep = M.Conv2d(3, 16, 3, padding=1), M.Conv2d(16, 16, 3, padding=1, groups=16)
        self.point, self.gate, self.last = M.Conv2d(16, 16, 1), M.Conv2d(16, 16, 1), M.Linear(48, 5)

    def forward(self, x):
        x = F.relu(self.first(x))
        y = F.silu(self.point(F.hswish(self.deep(x)))) + x
        y = y * F.sigmoid(self.gate(F.mean(y, axis=(2, 3), keepdims=True)))
        y = F.maximum(y, x) * F.minimum(y, x)
        y = F.concat([F.max_pool2d(y, 2), F.avg_pool2d(x, 2), F.avg_pool2d(y, 2)], axis=1)
        y = F.vision.interpolate(F.repeat(F.repeat(y, 2, axis=2), 2, axis=3), (19, 17))
        return self.last(F.mean(y, axis=(2, 3)))


def test_integers_of_a_batch(monkeypatch):
    monkeypatch.setattr(pictures, "_CACHE", 1 << 12)
    x = draw(3, 3, 13, 14)
    model = quantize_model(trace_module(Integers().eval(), tensor(x)), [x])
    want = model(tensor(x)).numpy()
    for level in isa.available():
        with isa.capped(level):
            for threads in (1, 2, 5):
                made = plan.compile(model.traced(), threads=threads)
                np.testing.assert_array_equal(made(x)[0], want)
                assert "each_picture" in ops(made) and not {
                    "qconv2d",
                    "qmaximum",
                    "requantize",
                    "resize",
                    "fused_repeat",
                } & {*ops(made)}
    made = plan.compile(model.traced(), tune=True)
    np.testing.assert_array_equal(made(x)[0], want)


def test_in_networks_with_integers_floats_take_the_batch(monkeypatch):
    """There they add in an order of their own."""
    monkeypatch.setattr(pictures, "_CACHE", 1 << 12)
    x = draw(3, 3, 13, 14)
    net = M.Sequential(M.Conv2d(3, 8, 3), M.ReLU(), M.Conv2d(8, 8, 3), M.ReLU(), M.Conv2d(8, 8, 3)).eval()
    options = QuantConfig(exclude=("0", "2"))
    model = quantize_model(trace_module(net, tensor(x)), [x], options)
    assert model.report.floating
    made = plan.compile(model.traced())
    assert "each_picture" not in ops(made)
    np.testing.assert_array_equal(made(x)[0], model(tensor(x)).numpy())
