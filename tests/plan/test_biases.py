"""Constants added to float results of integer layers become biases in plans: the bits of eager calls at every level."""

import numpy as np
import pytest

from megengine import plan
from megengine.core.dtype import quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply
from megengine.kernels import isa
from megengine.tensor import Tensor
from megengine.traced_module import record

A, IN, OUT = quint8(0.05, 3), 5, 7
FLOAT = {"lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"}
PLACE = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1}


def draw(*shape):
    return np.random.default_rng(shape).integers(0, 256, shape).astype(np.uint8)


def constants(*window, bias=0.0):
    rng = np.random.default_rng(4)
    w = rng.integers(-127, 128, (OUT, IN, *window)).astype(np.int8)
    b, m = rng.integers(-99, 99, OUT).astype(np.int32), rng.uniform(1e-3, 2e-2, OUT).astype(np.float32)
    return [*map(Tensor, (w, b, m, np.full(OUT, bias, np.float32)))]


def conv(x, **options):
    return apply("qconv2d", x, *constants(2, 1, **options), **PLACE, **FLOAT)


def linear(x, **options):
    return apply("qlinear", x, *constants(**options), **FLOAT)


def number(*shape):
    return Tensor(np.random.default_rng(shape).standard_normal(shape).astype(np.float32))


def reshaped(x, *shape):
    return apply("reshape", x, shape=shape)


def steps(function, x):
    graph = record(function, [TensorSpec(x.shape, A)])
    wanted = function(Tensor._wrap(x, A))
    wanted, found = wanted if isinstance(wanted, tuple) else (wanted,), []
    for level in isa.available():
        with isa.capped(level):
            made = plan.compile(graph)
            for got, want in zip(made(x), wanted, strict=True):
                np.testing.assert_array_equal(got.view(np.uint32), want.numpy().view(np.uint32))
            found = [s.op for s in made.steps]
    return found


PICTURE, LINE, ROWS = draw(2, IN, 6, 3), draw(2, IN, 6, 1), draw(2, 6, IN)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: conv(x) + number(1, OUT, 1, 1), PICTURE),
        (lambda x: number(OUT, 1, 1) + conv(x), PICTURE),
        (lambda x: conv(x) + number(), PICTURE),
        (lambda x: conv(x) + Tensor(np.full((1, OUT, 1, 1), -0.0, np.float32)), PICTURE),
        (lambda x: reshaped(conv(x), 2, OUT, 5) + number(1, OUT, 1), LINE),
        (lambda x: linear(x) + number(OUT), ROWS),
        (lambda x: number(1, 1, OUT) + linear(x), ROWS),
        (lambda x: apply("tanh", linear(x) + number(OUT)) + 1.0, ROWS),
    ],
)
def test_a_sum_by_channel_is_a_bias(function, x):
    assert "add" not in steps(function, x)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: conv(x, bias=0.5) + number(1, OUT, 1, 1), PICTURE),  # a third number of another rounding
        (lambda x: conv(x) + number(1, 1, 5, 1), PICTURE),
        (lambda x: conv(x) + number(2, OUT, 5, 3), PICTURE),
        (lambda x: conv(x) + number(3, 2, OUT, 5, 3), PICTURE),
        (lambda x: conv(x) + Tensor(np.full(1, np.inf, np.float32)), PICTURE),
        (lambda x: reshaped(conv(x), 2, OUT, 15) + number(OUT, 1), PICTURE),
        (lambda x: reshaped(linear(x), 2, 6 * OUT) + number(6 * OUT), ROWS),
        (lambda x: (linear(x) + number(OUT), linear(x)), ROWS),
        (lambda x: (lambda y: (y + number(OUT), y))(linear(x)), ROWS),
        (lambda x: (lambda y: y + y)(linear(x)), ROWS),
    ],
)
def test_other_sums_stay(function, x):
    steps(function, x)


def test_ops_with_several_results_in_between():
    def function(x):
        first, second = apply("split", linear(x), sections=(3, OUT - 3), axis=2)
        return second, apply("quantize", first, dtype=A)

    graph = record(function, [TensorSpec(ROWS.shape, A)])
    got = plan.compile(graph)(ROWS)
    for one, want in zip(got, function(Tensor._wrap(ROWS, A)), strict=True):
        np.testing.assert_array_equal(one, want.numpy())
