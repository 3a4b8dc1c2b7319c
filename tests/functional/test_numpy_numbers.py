"""Numbers of NumPy's types stand where Python's do."""

import numpy as np
import pytest

import megengine as mge
import megengine.data
import megengine.functional as F
import megengine.module as M
from megengine import tensor

X, V = tensor(np.ones((2, 4, 3, 3), np.float32)), tensor(np.ones((2, 3), np.float32))


@pytest.mark.parametrize(
    "call",
    [
        lambda i: F.sum(V, i(1)),
        lambda i: F.norm(V, axis=i(1)),
        lambda i: F.max(V, axis=i(0)),
        lambda i: F.tile(V, i(2)),
        lambda i: F.roll(V, i(1), i(0)),
        lambda i: F.topk_accuracy(V, tensor([0, 1]), i(1)),
        lambda i: F.nn.layer_norm(V, i(3), False),
        lambda i: F.nn.group_norm(X, i(2), False),
        lambda i: M.LayerNorm(i(3))(V),
        lambda i: M.GeneralNorm(i(3), i(1))(V),
        lambda i: M.Conv2d(4, 4, i(3), padding=i(1))(X).shape,
        lambda i: M.ConvTranspose2d(4, 4, i(3), stride=i(2))(X).shape,
        lambda i: M.LocalConv2d(i(4), i(4), i(3), i(3), i(3))(X).shape,
        lambda i: mge.data.transform.Pad(i(1)).apply(np.ones((2, 2, 3))),
    ],
)  # fmt: skip
def test_integers_of_numpy_count_as_integers(call):
    """Axes, sizes, repetitions: what comes from a shape or an array of NumPy is taken as Python's number is."""
    wanted = call(int)
    for kind in (np.int64, np.int32, np.uint8):
        found = call(kind)
        assert found == wanted if isinstance(wanted, tuple) else np.array_equal(found, wanted)


def test_whole_floats_are_integers_in_every_kernel():
    """And others are refused before a kernel is chosen."""
    np.testing.assert_array_equal(F.nn.group_norm(X, 2.0, False), F.nn.group_norm(X, 2, False))
    with pytest.raises(TypeError, match=r"group_norm: num_groups is 2.5; expected an integer"):
        F.nn.group_norm(X, 2.5, False)


@pytest.mark.parametrize("length", [tensor(2.0), tensor(2), np.array(2.0), np.array(2), tensor([2.0]), 2.0])
@pytest.mark.parametrize("make", [F.ones, F.zeros, lambda n: F.full(n, 1.0), lambda n: mge.random.normal(0, 1, n)])
def test_one_length_makes_a_shape(make, length):
    """Scalars of any kind, whole floats too."""
    assert make(length).shape == (2,)


@pytest.mark.parametrize("make", [F.ones, F.zeros, lambda n: F.full(n, 1.0), lambda n: mge.random.normal(0, 1, n)])
def test_lengths_are_whole_numbers(make):
    with pytest.raises(mge.core.errors.ArgumentError, match=r"expected (an integer|integers)"):
        make(tensor(2.5))
