"""Gradients where a function bends, jumps or is infinite: those of the limit, never NaN from 0 times infinity."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.tensor import Tensor, tensor

INF = np.inf


def gradients(function, *points):
    inputs = [Tensor(np.asarray(p, np.float32)) for p in points]
    with GradManager().attach(inputs) as manager:
        manager.backward(function(*inputs).sum())
    return [np.zeros(t.shape) if t.grad is None else t.grad.numpy() for t in inputs]


BOUNDED = {  # a function, the point, and the slopes of the root of its result; 0 has an infinite slope
    "clip": (lambda x: F.clip(x, 0, 5), [-1, 4, 9], [0, 0.25, 0]),
    "maximum": (lambda x: F.maximum(x, 0), [-1, 4], [0, 0.25]),
    "maximum, second": (lambda x: F.maximum(F.zeros(2), x), [-1, 4], [0, 0.25]),
    "minimum": (lambda x: F.minimum(x, 0), [2, 0], [0, INF]),
    "relu6": (F.relu6, [-1, 0, 4, 9], [0, 0, 0.25, 0]),
    "hsigmoid": (F.hsigmoid, [-4, 5], [0, 0]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.5), [0, 4], [INF, 0.25]),
    "largest of rows": (lambda x: F.max(x.reshape(2, 2), 1), [-1, 0, 4, 1], [0, INF, 0.25, 0]),
    "sort": (lambda x: F.sort(x)[0], [4, 0, 1], [0.25, INF, 0.5]),
    "topk": (lambda x: F.topk(x, 2, descending=False)[0], [4, 0, 1], [0, INF, 0.5]),
    "assignment": (lambda x: F.scatter(x.reshape(1, 2), 1, tensor([[0]]), tensor([[0.0]])), [3, 4], [0, 0.25]),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_takes_no_part_in_a_root_has_no_slope(name):
    function, point, want = BOUNDED[name]
    np.testing.assert_array_equal(gradients(lambda x: F.sqrt(function(x)), point)[0], np.float32(want))


def test_slopes_at_bends():
    """At 0 that of prelu is 1, as in MegEngine, also per channel; it was 1 plus the slope below 0."""
    slopes, weights = gradients(F.prelu, [[0, 1, -2]], [0.25])
    np.testing.assert_array_equal(slopes, [[1, 1, 0.25]])
    np.testing.assert_array_equal(weights, [-2])
    np.testing.assert_array_equal(gradients(F.prelu, [[0, -1]], [0.5, 0.25])[0], [[1, 0.25]])
    np.testing.assert_array_equal(gradients(F.hswish, [INF, -INF, -4, 4])[0], [1, 0, 0, 1])


def test_powers_of_zero():
    """A polynomial has its slope at 0; the exponent has one where the limit is finite."""
    slopes = gradients(lambda x: x**0 + 3 * x**1 + x**2, [0, 2])[0]
    np.testing.assert_array_equal(slopes, [3, 7])
    slopes, exponents = gradients(F.pow, [0, 0, 0, 2, 4], [0, 1, 2.5, 0, 0.5])
    np.testing.assert_allclose(slopes, [0, 1, 0, 0, 0.25])
    np.testing.assert_allclose(exponents, [0, 0, 0, np.log(2), 2 * np.log(4)], rtol=1e-6)
    assert np.isneginf(gradients(F.pow, [0.0], [-1.0])[0])


def test_sorting_many_numbers_has_a_gradient():
    """It took a matrix of the length of the row, squared."""
    x = np.random.default_rng(0).permutation(60_000)
    found = gradients(lambda t: F.sort(t)[0] * F.arange(x.size, dtype="float32"), x)[0]
    np.testing.assert_array_equal(found, x)
