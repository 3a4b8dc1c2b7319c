"""Extrema and histograms of arrays, by the native kernels of every instruction set, against NumPy."""

import numpy as np
import pytest

from megengine.kernels import _core, counting, isa

SHAPES = [(1,), (15,), (16,), (17,), (1023,), (1024, 1), (1025, 2), (2, 3, 5, 7), (1, 33, 4, 4), (3, 1, 1, 1)]


def layouts(x):
    """The same values in several orders in memory."""
    yield x
    yield np.asfortranarray(x)
    yield x[::-1]
    yield np.repeat(x, 2, axis=-1)[..., ::2]
    if x.ndim == 4:
        yield np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extrema_of_every_layout_and_level(shape):
    x = np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)
    for axis in (None, *range(x.ndim)):
        axes = tuple(i for i in range(x.ndim) if i != axis)
        expected = np.atleast_1d(x.min(axes)), np.atleast_1d(x.max(axes))
        for level in isa.available():
            with isa.capped(level):
                for one in layouts(x):
                    lo, hi = counting.extrema(one, axis)
                    if axis == 0:  # the layout that is read backwards
                        lo, hi, expected = np.sort(lo), np.sort(hi), tuple(map(np.sort, expected))
                    np.testing.assert_array_equal((lo, hi), expected, err_msg=f"{level} {axis}")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_every_layout_are_the_same_at_every_level(shape):
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    for axis in range(x.ndim):
        axes = tuple(i for i in range(x.ndim) if i != axis)
        for one in layouts(x):
            sums = np.zeros((len(isa.available()), one.shape[axis]))
            for level, row in zip(isa.available(), sums, strict=True):
                with isa.capped(level):
                    counting.extrema(one, axis, row)
            np.testing.assert_allclose(sums[0], one.sum(axis=axes, dtype=np.float64), rtol=1e-12, atol=1e-12)
            assert (sums == sums[0]).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_found_everywhere(bad):
    x = np.zeros((2, 5, 3, 4), np.float32)
    for level in isa.available():
        with isa.capped(level):
            for at in np.ndindex(*x.shape):
                y = x.copy()
                y[at] = bad
                for axis in (None, 1, 3):
                    assert counting.extrema(y, axis) is None


@pytest.mark.parametrize("exponent", [-125, -7, 0, 3, 110])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_counts_are_numpys(exponent, shape):
    rng = np.random.default_rng(exponent + 200)
    x = np.ldexp(rng.uniform(-9, 9, shape).astype(np.float32), exponent)
    expected = np.bincount(np.floor(np.ldexp(x.reshape(-1), -exponent)).astype(int) + 9, minlength=18)
    for level in isa.available():
        with isa.capped(level):
            for one in layouts(x):
                counts = np.ones(18, np.int64)
                counting.count(one, exponent, -9, counts)
                np.testing.assert_array_equal(counts, expected + 1)


def test_other_dtypes_are_counted_by_numpy():
    counts = np.zeros(4, np.int64)
    counting.count(np.array([0.5, 1.5, 3.0]), 0, 0, counts)
    assert counts.tolist() == [1, 1, 0, 1]
    lo, hi = counting.extrema(np.array([[1.0, 2.0], [-3.0, 0.5]]), 1)
    assert lo.tolist() == [-3.0, 0.5] and hi.tolist() == [1.0, 2.0]


def test_values_outside_of_the_bins_are_refused():
    for value in (-0.5, 4.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="outside of the bins"):
            _core.count(np.full(7, value, np.float32), 1.0, 0, np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="sizes do not fit"):
        _core.extrema(np.zeros(7, np.float32), 2, *np.zeros((2, 2), np.float32), np.zeros(0))
