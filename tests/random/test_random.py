"""Random tensors: seeds, shapes, moments, wrong parameters."""

import numpy as np
import pytest

from megengine import random
from megengine.core.errors import MegEngineError, OptionError
from megengine.tensor import tensor


def moments(t):
    return t.numpy().mean(), t.numpy().var()


@pytest.mark.parametrize(
    ("draw", "mean", "variance"),
    [
        (lambda: random.uniform(-1, 3, 40_000), 1, 16 / 12),
        (lambda: random.normal(2, 3, (200, 200)), 2, 9),
        (lambda: random.gamma(2.0, 3.0, (40_000,)), 6, 18),
        (lambda: random.beta(2.0, 3.0, (40_000,)), 0.4, 0.04),
        (lambda: random.poisson(4.0, (40_000,)), 4, 4),
    ],
)
def test_moments_and_seeds(draw, mean, variance):
    random.seed(0)
    first = draw()
    np.testing.assert_allclose(moments(first), (mean, variance), rtol=0.05, atol=0.01)
    assert first.dtype == np.float32
    assert not np.array_equal(draw().numpy(), first.numpy())
    random.seed(0)
    np.testing.assert_array_equal(draw().numpy(), first.numpy())


def test_shapes_follow_size_and_parameters():
    assert random.uniform().shape == (1,)
    assert random.normal(size=(2, 3)).shape == (2, 3)
    rate = tensor([[1.0, 50.0]])
    assert random.poisson(rate).shape == (1, 2)
    assert random.poisson(rate, size=(4,)).shape == (4, 1, 2)
    assert random.gamma(rate, tensor([[1.0], [2.0]])).shape == (2, 2)


def test_orders():
    order = random.permutation(50)
    assert order.dtype == np.int32
    assert sorted(order.numpy()) == list(range(50))
    rows = tensor(np.arange(40).reshape(20, 2))
    random.shuffle(rows)
    assert sorted(rows.numpy()[:, 0]) == list(range(0, 40, 2))
    np.testing.assert_array_equal(rows.numpy()[:, 1] - rows.numpy()[:, 0], 1)


def test_wrong_parameters():
    with pytest.raises(OptionError, match="low=2 is above high=1"):
        random.uniform(2, 1)
    with pytest.raises(OptionError, match="std=-1; expected at least 0"):
        random.normal(0, -1)


def test_generators_have_own_states():
    first, second, other = random.RNG(seed=3), random.RNG(seed=3), random.RNG(seed=4)
    a = first.normal(size=(5,)).numpy()
    random.seed(0)
    np.testing.assert_array_equal(second.normal(size=(5,)).numpy(), a)
    assert not np.array_equal(other.normal(size=(5,)).numpy(), a)
    assert not np.array_equal(first.normal(size=(5,)).numpy(), a)
    assert not np.array_equal(random.RNG().uniform(size=(5,)).numpy(), random.RNG().uniform(size=(5,)).numpy())
    assert random.RNG(device="test0").uniform().device == "test0"


def test_permutations():
    assert random.permutation(5, dtype="float32").dtype == np.float32
    assert random.permutation(0).shape == (0,)
    rows = random.permutation(tensor([[1, 2], [3, 4]]))
    assert sorted(map(tuple, rows.tolist())) == [(1, 2), (3, 4)]


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: random.gamma(-1.0), "gamma: shape holds -1.0; expected finite numbers above 0"),
        (lambda: random.beta(1.0, 0.0), "beta: beta holds 0.0; expected finite numbers above 0"),
        (lambda: random.poisson(-2.0), "poisson: lam holds -2.0; expected finite numbers of at least 0"),
        (lambda: random.permutation(-1), "permutation: n is -1"),
        (lambda: random.permutation(300, dtype="int8"), "299 does not fit into int8"),
        (lambda: random.uniform(size=(-1,)), "uniform: size is"),
        (lambda: random.shuffle([1, 2]), "shuffle: inp is a list; expected a Tensor"),
        (lambda: random.seed(-1), "seed: got -1"),
    ],
)
def test_wrong_arguments(call, match):
    with pytest.raises(MegEngineError, match=match):
        call()
