"""Normalisation against its definition in NumPy float64."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.core.errors import ShapeError
from megengine.tensor import tensor

RNG = np.random.default_rng(0)
X, W, B = RNG.standard_normal((2, 4, 3, 5)), RNG.standard_normal(4), RNG.standard_normal(4)


def standard(x, axes, eps=1e-5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + eps)


def close(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-5)


def channels(v):
    return v.reshape(1, 4, 1, 1)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_group_norm(groups):
    y = standard(X.reshape(2, groups, -1), 2).reshape(X.shape)
    close(F.group_norm(tensor(X), groups, True, tensor(W), tensor(B)), y * channels(W) + channels(B))
    close(F.group_norm(tensor(X), groups, False), y)


def test_instance_norm():
    close(F.instance_norm(tensor(X), True, tensor(W), tensor(B)), standard(X, (2, 3)) * channels(W) + channels(B))


@pytest.mark.parametrize("shape", [(5,), (3, 5), 5])
def test_layer_norm(shape):
    last = (shape,) if isinstance(shape, int) else shape
    w, b = RNG.standard_normal(last), RNG.standard_normal(last)
    y = standard(X, tuple(range(4 - len(last), 4)))
    close(F.layer_norm(tensor(X), shape, True, tensor(w), tensor(b)), y * w + b)


def test_general_norm():
    close(F.general_norm(tensor(X), (1, 3), affine=False), standard(X, (1, 3)))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_normalize(axis):
    close(F.normalize(tensor(X), axis=axis), X / np.sqrt((X**2).sum(axis, keepdims=True)))
    close(F.normalize(tensor(X)), X / np.sqrt((X**2).sum()))


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: F.group_norm(x, 3, False), ShapeError, "divisible by num_groups=3"),
        (lambda x: F.instance_norm(x[0, 0], False), ShapeError, "at least 3 axes"),
        (lambda x: F.layer_norm(x, (4, 5), False), ShapeError, r"expected it to end in \(4, 5\)"),
    ],
)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call(tensor(X))
