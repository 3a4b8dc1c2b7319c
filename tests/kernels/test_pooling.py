"""Own pooling of float32 and of halves at every instruction set: the bits of NumPy's, nothing written past the end."""

import numpy as np
import pytest

from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply, get_op
from megengine.kernels import _core, isa, pooling
from megengine.kernels.native import from_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.module import MaxPool2d
from megengine.tensor import Tensor, tensor
from megengine.traced_module import trace_module

HALF = np.dtype(np.float16)
MAXIMA = [("max_pool2d", dtype) for dtype in (np.dtype(np.float32), bfloat16, HALF)]
CASES = [*MAXIMA, ("avg_pool2d", bfloat16)]
CHANNELS = [2, 3, 8, 31, 32, 33, 64, 65, 130, 161]


def bits(array):
    return array.view(f"u{array.itemsize}")


def reference(op, x, attrs):
    """The float32 result of the same numbers, rounded once."""
    return get_op(op).reference(x.astype(np.float32), **attrs).astype(x.dtype)


def results(op, x, attrs, want):
    """By the steps of every level, in one part and in three."""
    problem = Problem(op, [TensorSpec(x.shape, x.dtype)], [TensorSpec(want.shape, x.dtype)], attrs)
    for level in isa.available():
        for threads in (1, 3):
            with isa.capped(level):
                kernel = family(op).select(problem, {}, step=True)
                assert kernel.name == f"own_{op}"
                out = np.full(want.size + 32, 77, bits(x).dtype)
                _core.run_step(kernel.make_step(problem, {}, threads), [bits(to_step(x)), out[: want.size]])
            assert (out[want.size :] == 77).all()
            yield from_step(out[: want.size].view(x.dtype).reshape([want.shape[i] for i in (0, 2, 3, 1)]))


def attributes(op, kernel, stride, padding):
    more = {"count_include_pad": False} if op == "avg_pool2d" else {}
    return {"kernel": kernel, "stride": stride, "padding": padding, **more}


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_every_number_of_channels(op, dtype, channels):
    x = np.random.default_rng(channels).standard_normal((2, channels, 5, 6)).astype(dtype)
    attrs = attributes(op, (3, 2), (2, 1), ((1, 1), (0, 1)))
    want = reference(op, x, attrs)
    for got in results(op, x, attrs, want):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("op", "dtype"), CASES, ids=str)
def test_values_at_the_ends_of_their_range(op, dtype):
    rng = np.random.default_rng(0)
    ends = [np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-7, -1e-7, 3e4, -3e4]
    x = rng.choice(np.array(ends, np.float32), (1, 40, 9, 9)).astype(dtype)
    attrs = attributes(op, (2, 2), (1, 1), ((0, 0), (0, 0)))
    with np.errstate(invalid="ignore", over="ignore"):
        want = reference(op, x, attrs)
        x[0, 0], want[0, 0] = -np.inf, -np.inf
    for got in results(op, x, attrs, want):
        np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


def test_means_of_float16_are_computed_in_float32():
    specs = [TensorSpec((1, 8, 4, 4), HALF)], [TensorSpec((1, 8, 2, 2), HALF)]
    problem = Problem("avg_pool2d", *specs, attributes("avg_pool2d", (2, 2), (2, 2), ((0, 0), (0, 0))))
    reasons = dict(family("avg_pool2d").explain(problem, step=True))
    assert reasons["own_avg_pool2d"] == "no means of float16"


@pytest.mark.parametrize(("op", "dtype"), CASES[1:], ids=str)
def test_planes_of_halves_are_pooled_in_float32(op, dtype):
    specs = [TensorSpec((2, 1, 9, 8), dtype)], [TensorSpec((2, 1, 9, 8), dtype)]
    attrs = attributes(op, (5, 1), (1, 1), ((2, 2), (0, 0)))
    reasons = dict(family(op).explain(Problem(op, *specs, attrs), step=True))
    assert "a vector at a time" in reasons[f"own_{op}"]
    x = np.random.default_rng(0).standard_normal((2, 1, 9, 8)).astype(dtype)
    got = apply(op, Tensor(x), **attrs).numpy()
    np.testing.assert_array_equal(bits(got), bits(reference(op, x, attrs)))


PLANES = [
    ((2, 3, 9, 7), (3, 3), (2, 2), ((1, 1), (1, 1))),
    ((1, 2, 5, 33), (2, 4), (1, 1), ((0, 1), (2, 1))),
    ((1, 3, 12, 40), (3, 2), (3, 2), ((1, 0), (0, 1))),
    ((1, 1, 20, 50), (5, 13), (1, 1), ((2, 2), (6, 6))),
    ((2, 1, 1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ((1, 2, 17, 65), (1, 5), (4, 3), ((0, 0), (4, 4))),
    *(((1, 2, 4, n), (2, 2), (2, 2), ((0, 0), (0, 1))) for n in (15, 16, 17, 31, 32, 33)),
]


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), PLANES)
def test_maxima_of_planes_in_rows(shape, kernel, stride, padding, dtype, level):
    """NaN and infinities too; nothing is read behind the planes, or written behind the result."""
    attrs = attributes("max_pool2d", kernel, stride, padding)
    x = np.random.default_rng(6).standard_normal(shape).astype(dtype)
    for special in (None, np.nan, np.inf, -np.inf):
        if special is not None:
            x.flat[:: max(2, x.size // 5)] = special
        want = reference("max_pool2d", x, attrs)
        problem = Problem("max_pool2d", [TensorSpec(x.shape, dtype)], [TensorSpec(want.shape, dtype)], attrs)
        for threads in (1, 3):
            out = np.full(want.size + 32, 77, bits(x).dtype)
            with isa.capped(level):
                step = pooling.own_planes_max_pool2d.make_step(problem, {}, threads)
                _core.run_step(step, [bits(x), out[: want.size]])
            got = out[: want.size].view(dtype).reshape(want.shape).astype(np.float32)
            np.testing.assert_array_equal(got, want.astype(np.float32))
            assert (out[want.size :] == 77).all()


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), PLANES)
def test_means_of_planes_in_rows(shape, kernel, stride, padding, dtype, level):
    x = np.random.default_rng(8).standard_normal(shape).astype(dtype)
    for counted in (False, True):
        attrs = {**attributes("avg_pool2d", kernel, stride, padding), "count_include_pad": counted}
        want = reference("avg_pool2d", x, attrs)
        problem = Problem("avg_pool2d", [TensorSpec(x.shape, dtype)], [TensorSpec(want.shape, dtype)], attrs)
        assert pooling.own_planes_avg_pool2d.usable(problem) is None
        for threads in (1, 3):
            out = np.full(want.size + 32, 77, bits(x).dtype)
            with isa.capped(level):
                step = pooling.own_planes_avg_pool2d.make_step(problem, {}, threads)
                _core.run_step(step, [bits(x), out[: want.size]])
            got = out[: want.size].view(dtype).reshape(want.shape).astype(np.float32)
            np.testing.assert_array_equal(got, want.astype(np.float32))
            assert (out[want.size :] == 77).all()


def test_large_planes_are_averaged_channels_last():
    attrs = attributes("avg_pool2d", (2, 2), (2, 2), ((0, 0), (0, 0)))
    problem = Problem("avg_pool2d", [TensorSpec((1, 2, 300, 300), bfloat16)], [], attrs)
    assert "planes of 90000 numbers" in pooling.own_planes_avg_pool2d.usable(problem)


def test_a_plan_pools_in_rows_between_its_ends():
    x = np.random.default_rng(7).standard_normal((1, 3, 8, 8)).astype(np.float32)
    made = plan.compile(trace_module(MaxPool2d(3, 2, 1), tensor(x)))
    assert [info.kernel for info in made.steps] == ["own_planes_max_pool2d"]
    np.testing.assert_array_equal(made(x)[0], MaxPool2d(3, 2, 1)(tensor(x)).numpy())
