"""Square brackets against NumPy: every mixture of items, read and assigned."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import megengine.functional as F
from megengine.autodiff import GradManager
from megengine.core.errors import MegEngineError
from megengine.tensor import Tensor, tensor

X = np.arange(4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
SLICES = st.builds(slice, *[st.one_of(st.none(), st.integers(-6, 6))] * 2, st.sampled_from([None, 1, 2, -1, -2]))


def items(length):
    vector = hnp.arrays(
        np.int32, st.integers(0, 3).map(lambda n: (2,) if n else ()), elements=st.integers(-length, length - 1)
    )
    return st.one_of(SLICES, st.integers(-length, length - 1), vector, st.none())


@st.composite
def keys(draw):
    key = []
    for length in X.shape[: draw(st.integers(0, 3))]:
        item = draw(items(length))
        key.append(item)
        if item is None:
            key.append(draw(SLICES))
    return tuple(key)


@settings(max_examples=300, deadline=None)
@given(keys())
def test_read_and_assigned_as_numpy(key):
    x = tensor(X)
    want = X[key]
    found = x[key]
    assert found.shape == want.shape
    np.testing.assert_array_equal(found.numpy(), want)
    changed, copy = tensor(X), X.copy()
    copy[key] = -1
    changed[key] = -1
    np.testing.assert_array_equal(changed.numpy(), copy)


@pytest.mark.parametrize("key", [(None, [0, 2]), ([1, 1], None, slice(1, 3)), (slice(None), None, [0, 4], None)])
def test_gradient_through_new_axes_and_lists(key):
    x = tensor(X)
    manager = GradManager().attach(x)
    with manager:
        manager.backward((x[key] * 2).sum())
    want = np.zeros_like(X)
    np.add.at(want, tuple(k for k in key if k is not None), 2)
    np.testing.assert_array_equal(x.grad.numpy(), want)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: tensor(X)[..., 0, ...], "an index has '...' 2 times; expected it once"),
        (lambda: tensor(X)[..., [0], ...], "an index has '...' 2 times; expected it once"),
        (lambda: tensor(X)[4], "index 4 is out of range for axis 0 of length 4"),
        (lambda: tensor(X)[:, [0, -6]], "index -6 is out of range for axis 1 of length 5"),
        (lambda: tensor(X)[0, 0, 0, 0], "4 indices for a tensor of shape"),
        (lambda: tensor(X)[[0.5]], "expected integers, booleans, slices or None"),
        (lambda: tensor(X)[np.ones(3, bool)], "a mask of shape"),
        (lambda: tensor(X)[np.bool_(True), 0], "a truth value stands beside other indices"),
        (lambda: F.cond_take(tensor(X), tensor(X)), "mask is float32; expected bool"),
        (lambda: F.scatter(tensor(X), 0, tensor([0]), tensor([1.0])), "expected 3 axes"),
        (lambda: F.scatter(tensor([[1.0]]), 0, tensor([[3]]), tensor([[1.0]])), "index 3 is out of range"),
        (lambda: F.diag(tensor(X)), "expected a vector or a matrix"),
        (lambda: F.meshgrid(tensor(X)), "expected a vector"),
        (lambda: F.meshgrid(tensor([1.0]), indexing="yx"), "indexing is 'yx'; expected one of"),
        (lambda: F.conv1d(tensor(X[0]), tensor(X)), "conv1d: inp has shape"),
        (lambda: F.conv3d(tensor(X), tensor(X)), "conv3d: x has shape"),
        (lambda: F.conv_transpose3d(tensor(X), tensor(X)), "conv_transpose3d: x has shape"),
        (lambda: F.local_conv2d(tensor(X), tensor(X)), "local_conv2d: inp has shape"),
        (lambda: F.local_response_norm(tensor(X)), "local_response_norm: inp has shape"),
        (lambda: F.sliding_window(tensor(X), 3), "sliding_window: inp has shape"),
        (lambda: F.adaptive_avg_pool2d(tensor(X[None]), (9, 1)), "oshp is"),
        (lambda: F.sync_batch_norm(tensor(X), tensor([0.0]), tensor([1.0]), eps_mode="ad"), "eps_mode is 'ad'"),
    ],
)
def test_wrong_arguments(call, match):
    with pytest.raises(MegEngineError, match=match):
        call()


def test_sync_batch_norm_of_one_process():
    x = np.random.default_rng(0).standard_normal((3, 2, 4)).astype(np.float32)
    mean, var = tensor(np.zeros((1, 2, 1))), tensor(np.full((1, 2, 1), 1e-9))
    found = F.sync_batch_norm(tensor(x), mean, var, training=True)
    np.testing.assert_allclose(found.numpy(), F.batch_norm(tensor(x), training=True).numpy())
    assert mean.numpy().any()
    y = F.sync_batch_norm(
        tensor(x), tensor(np.zeros((1, 2, 1))), tensor(np.full((1, 2, 1), 1e-9)), eps=0.25, eps_mode="max"
    )
    np.testing.assert_allclose(y.numpy(), x * 2, rtol=1e-5)


@pytest.mark.parametrize("truth", [True, False, np.bool_(True), np.array(False), tensor(True), tensor(False)])
def test_a_single_truth_value_is_numpys(truth):
    x, y = X.copy(), tensor(X)
    key = truth if not isinstance(truth, Tensor) else truth.numpy()[()]
    np.testing.assert_array_equal(y[truth].numpy(), x[key])
    x[key], y[truth] = 5, 5
    np.testing.assert_array_equal(y.numpy(), x)
