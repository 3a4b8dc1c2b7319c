"""Repeating and rearranging, against NumPy; copies between devices with their gradient."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.core.errors import OptionError, ShapeError
from megengine.tensor import tensor

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)


def equal(found, expected):
    np.testing.assert_array_equal(found.numpy(), expected)


@pytest.mark.parametrize("reps", [2, (2,), (1, 3), (2, 1, 3), (2, 1, 1, 2), (0, 1, 1)])
def test_tile(reps):
    equal(F.tile(tensor(X), reps), np.tile(X, reps))


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("repeats", [0, 1, 3])
def test_repeat(axis, repeats):
    equal(F.repeat(tensor(X), repeats, axis), np.repeat(X, repeats, axis))


@pytest.mark.parametrize(("shift", "axis"), [(1, None), (2, 1), (-1, 2), (5, 0), ((1, 2), (0, 2)), (0, 1)])
def test_roll(shift, axis):
    equal(F.roll(tensor(X), shift, axis), np.roll(X, shift, axis))


def test_pixel_shuffle():
    x = np.arange(2 * 8 * 2 * 3, dtype=np.float32).reshape(2, 8, 2, 3)
    expected = x.reshape(2, 2, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 4, 6)
    equal(F.pixel_shuffle(tensor(x), 2), expected)


def test_values_that_are_no_numbers():
    x = np.array([1, np.nan, np.inf, -np.inf], np.float32)
    equal(F.isnan(tensor(x)), np.isnan(x))
    equal(F.isinf(tensor(x)), np.isinf(x))


def test_logsigmoid_and_prelu():
    x = np.array([-200, -1, 0, 1, 200], np.float32)
    np.testing.assert_allclose(
        F.logsigmoid(tensor(x)).numpy(), -np.logaddexp(0, -x.astype(np.float64)), rtol=1e-6, atol=1e-30
    )
    equal(F.prelu(tensor(x), 0.25), np.where(x > 0, x, x * np.float32(0.25)))


def test_topk_accuracy():
    logits = tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]])
    first, second = F.topk_accuracy(logits, tensor([1, 2]), (1, 2))
    assert (first.item(), second.item(), F.topk_accuracy(logits, tensor([1, 2])).item()) == (0.5, 1.0, 0.5)


def test_gradient_through_a_copy_to_another_device():
    x = tensor(X)
    gm = GradManager().attach(x)
    with gm:
        y = x.to("test0") * 3
        assert y.device == "test0"
        gm.backward(F.copy(y, "cpu0").sum())
    assert x.grad.device == "cpu0"
    equal(x.grad, np.full_like(X, 3))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: F.tile(x, (-1, 1)), OptionError, "expected numbers of at least 0"),
        (lambda x: F.repeat(x, -1), OptionError, "repeats is -1"),
        (lambda x: F.roll(x, (1, 2), 0), OptionError, "2 shifts for 1 axis"),
        (lambda x: F.pixel_shuffle(x, 2), ShapeError, "expected .*upscale_factor 2"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call(tensor(X))
