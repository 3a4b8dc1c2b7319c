"""Casts around moves in plans: fewer steps, and the bits of the eager run."""

import numpy as np
import pytest

import megengine.functional as F
import megengine.module as M
from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.kernels import isa
from megengine.tensor import tensor
from megengine.traced_module import trace_module

TYPES = [np.dtype(np.float16), bfloat16]
SHAPE = (2, 4, 6, 7)


class Between(M.Module):
    """A function of halves between casts."""

    def __init__(self, function, dtype):
        super().__init__()
        self.function, self.dtype = function, dtype

    def forward(self, x):
        return self.function(x.astype(self.dtype)).astype("float32")


def border(value, mode="constant"):
    return lambda x: F.pad(x, ((0, 0), (0, 0), (1, 2), (2, 1)), mode, value)


MOVES = {
    "turn": (lambda x: F.transpose(x, (0, 2, 3, 1)), 2),
    "shuffle": (lambda x: F.pixel_shuffle(x, 2), 2),
    "border": (border(0.5), 2),
    "border of another number": (border(0.1), 3),
    "mirror": (border(0, "reflect"), 2),
    "cut": (lambda x: x[:, 1:3, ::2], 2),
    "repeat": (lambda x: F.broadcast_to(x[:, :1], SHAPE), 3),
    "several": (lambda x: F.transpose(border(0)(x)[:, ::-1], (1, 0, 3, 2)), 4),
    "joined": (lambda x: F.concat([x[:, :2], x[:, 3:]], 1), 5),
    "used twice": (lambda x: F.concat([x, x], 1), 2),
    "places": (lambda x: x[:, tensor([3, 0, 3])], 2),
    "chain behind": (lambda x: x[:, 1:3] * 3, 2),
}


def values():
    x = np.random.default_rng(0).normal(0, 3, SHAPE).astype(np.float32)
    x[0, :, 0, :7] = [np.nan, np.inf, -np.inf, -0.0, 1e-30, -1e-41, 65520.0]
    return x


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", MOVES)
def test_moved_numbers_are_rounded_once(name, dtype):
    function, steps = MOVES[name]
    x = values()
    net = trace_module(Between(function, dtype), tensor(x))
    want = net(tensor(x)).numpy()
    for level in isa.available():
        with isa.capped(level):
            made = plan.compile(net)
            np.testing.assert_array_equal(made(x)[0].view(np.uint32), want.view(np.uint32))
    assert len(made.steps) == steps, made.describe()


def test_halves_move_between_two_chains():
    def function(x):
        return F.relu(F.transpose(F.relu(x) * 2, (0, 2, 1, 3))) + 1

    net = trace_module(Between(function, bfloat16), tensor(values()))
    made = plan.compile(net)
    assert [s.op for s in made.steps] == ["elementwise", "transpose", "elementwise"]
    moves = [e for e in made.graph.exprs() if getattr(e, "op", "") == "transpose"]
    assert [e.output.dtype for e in moves] == [bfloat16]


def test_results_that_are_halves_stay():
    class Two(M.Module):
        def forward(self, x):
            y = F.transpose(x.astype("bfloat16"), (0, 2, 1, 3))
            return y, y.astype("float32")

    x = values()
    half, wide = plan.compile(trace_module(Two(), tensor(x)))(x)
    assert half.dtype == bfloat16
    np.testing.assert_array_equal(half.astype(np.float32), wide)


CLAMPS = {
    "relu": (F.relu, True),
    "relu6": (F.relu6, True),
    "bounds of halves": (lambda x: F.clip(x, -0.5, 1.25), True),
    "other bounds": (lambda x: F.clip(x, -0.1, 1.25), False),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", CLAMPS)
def test_clamps_change_places_with_rounding(name, dtype):
    """A sum is rounded once, behind the clamp, with the results of the eager run, which rounds it before, too."""
    clamp, once = CLAMPS[name]

    class Behind(M.Module):
        def forward(self, x):
            return clamp(x.astype(dtype) * tensor(np.float32(1.1).astype(dtype)) + x.astype(dtype))

    x = np.concatenate([values().ravel(), np.linspace(-8, 8, 4001, dtype=np.float32)])
    net = trace_module(Behind(), tensor(x))
    want = net(tensor(x)).numpy()
    for level in isa.available():
        with isa.capped(level):
            made = plan.compile(net)
            np.testing.assert_array_equal(made(x)[0].astype(np.float32), want.astype(np.float32))
    (chain,) = (e for e in made.graph.exprs() if getattr(e, "op", "") == "elementwise")
    assert ([op for op, *_ in chain.attrs["program"]][-3] == "add") == once
