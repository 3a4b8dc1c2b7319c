"""Inverses, determinants and singular values, on the emulated GPU, beside NumPy."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.errors import OptionError
from megengine.dispatch import get_op
from megengine.kernels.cuda import matrices


def matrix(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def close(op, x, attrs=None, gpu=None, rtol=1e-5):
    same(on_gpu(op, (x,), attrs, gpu=gpu), by_reference(op, (x,), attrs), rtol=rtol, atol=rtol)


def check_svd(x, *, full, gpu=None):
    """The parts multiply to x, vectors are orthogonal, and the values are NumPy's."""
    u, s, v = on_gpu("svd", (x,), {"full": full}, gpu=gpu)
    want = by_reference("svd", (x,), {"full": full})
    eps = 100 * np.finfo(x.dtype).eps
    scale = max(np.abs(x).max(initial=0), 1)
    k = s.shape[-1]
    np.testing.assert_allclose(s, want[1], rtol=1e-5, atol=1e-5 * scale)
    np.testing.assert_allclose(u[..., :k] * s[..., None, :] @ v[..., :k, :], x, atol=eps * scale)
    for part in (u.swapaxes(-1, -2) @ u, v @ v.swapaxes(-1, -2)):
        np.testing.assert_allclose(part, np.broadcast_to(np.eye(part.shape[-1]), part.shape), atol=eps)
    return u, v, want


@pytest.mark.parametrize("op", ["matinv", "det"])
def test_samples(op):
    for sample in get_op(op).samples():
        for inputs in ([narrowed(x) for x in sample.inputs], sample.inputs):
            close(op, inputs[0], sample.attrs)


def test_samples_of_singular_values():
    for sample in get_op("svd").samples():
        for x in (narrowed(sample.inputs[0]), sample.inputs[0]):
            check_svd(x, full=sample.attrs["full"])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("n", [1, 2, 31, 33])
def test_inverses_and_determinants(n, order):
    for dtype in (np.float32, np.float64):
        x = matrix(2, n, n, seed=n, dtype=dtype)
        gpu = EmulatedGpu(order=order)
        (found,) = on_gpu("matinv", (x,), gpu=gpu)
        exact = np.linalg.inv(x.astype(np.float64))
        (wanted,) = by_reference("matinv", (x,))
        size = np.abs(exact).max()
        assert np.abs(found - exact).max() <= max(np.abs(wanted - exact).max(), 1e-6 * size)
        close("det", x, gpu=gpu, rtol=1e-4)


def test_rows_are_exchanged_where_pivots_are_zero():
    x = np.array([[0, 1, 0], [0, 0, 2], [4, 0, 0]], np.float32)
    close("matinv", x)
    close("det", x)
    close("det", x[[1, 0, 2]])


def test_matrices_without_an_inverse_are_refused():
    x = np.stack([np.eye(3), np.ones((3, 3))]).astype(np.float32)
    with pytest.raises(OptionError, match="matinv: a matrix is singular; expected matrices of full rank"):
        on_gpu("matinv", (x,))
    np.testing.assert_array_equal(on_gpu("det", (x,))[0], [1, 0])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (7, 7), (12, 9), (9, 12), (2, 33, 4)])
def test_singular_values_and_vectors(shape, order):
    for full in (False, True):
        x = matrix(*shape)
        u, v, want = check_svd(x, full=full, gpu=EmulatedGpu(order=order))
        k = min(shape[-2:])
        # but for the signs the vectors are NumPy's, as the values of random matrices differ
        np.testing.assert_allclose(np.abs(u[..., :k]), np.abs(want[0][..., :k]), atol=1e-4)
        np.testing.assert_allclose(np.abs(v[..., :k, :]), np.abs(want[2][..., :k, :]), atol=1e-4)


def test_matrices_of_less_than_full_rank():
    outer = np.outer(np.arange(1, 6), np.arange(1, 5)).astype(np.float32)
    repeated = np.array([[2, 0, 0], [0, 2, 0]], np.float32)
    for x in (outer, outer.T, np.zeros((3, 4), np.float32), repeated, np.eye(4, dtype=np.float32) * 1e30):
        for full in (False, True):
            u, s, v = on_gpu("svd", (x,), {"full": full})
            k = s.shape[-1]
            scale = max(np.abs(x).max(), 1)
            np.testing.assert_allclose(u[:, :k] * s @ v[:k], x, atol=1e-5 * scale)
            np.testing.assert_allclose(u.T @ u, np.eye(u.shape[1]), atol=1e-5)
            np.testing.assert_allclose(v @ v.T, np.eye(v.shape[0]), atol=1e-5)
            assert (np.diff(s) <= 0).all()


def test_elements_that_are_not_finite_are_refused():
    for bad in (np.nan, np.inf, -np.inf):
        x = matrix(3, 4)
        x[1, 2] = bad
        with pytest.raises(OptionError, match="svd: inp has elements that are infinite or not a number"):
            on_gpu("svd", (x,), {"full": False})


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0), (2, 0, 3)])
def test_matrices_without_elements(shape):
    for full in (False, True):
        found = on_gpu("svd", (np.zeros(shape, np.float32),), {"full": full})
        same(found, by_reference("svd", (np.zeros(shape, np.float32),), {"full": full}))
    square = np.zeros((2, 0, 0), np.float32)
    for op in ("matinv", "det"):
        same(on_gpu(op, (square,)), by_reference(op, (square,)))


def test_every_kernel_has_a_test():
    assert set(matrices.KERNELS) == {"matinv", "det", "svd"}
