"""Sums and means in NumPy's order on the emulated GPU: equal bits."""

import itertools

import numpy as np
import pytest
from cuda_checks import by_reference, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16


def _check(op, x, axes, gpu=None):
    attrs = {"axis": axes, "keepdims": False}
    half = x.dtype.itemsize == 2
    wanted = by_reference(op, (x.astype(np.float32) if half else x,), attrs)
    found = on_gpu(op, (x,), attrs, kernel=f"cuda_{op}_in_order", gpu=gpu)
    same(found, [w.astype(x.dtype) for w in wanted])


def _values(*shape, dtype=np.float32):
    return np.random.default_rng(list(shape)).standard_normal(shape).astype(dtype)


def test_lengths():
    for n in (*range(2, 40), *range(120, 150), *range(250, 300), 1000, 2055, 4097, 9001):
        _check("sum", _values(3, n), (1,))


def test_parts_of_long_rows():
    for n in (20_000, 40_001):
        gpu = EmulatedGpu()
        _check("mean", _values(n), (0,), gpu)
        assert [kernel for _, kernel in gpu.launched] == ["cuda_sum_rows", "cuda_sum_parts"]


@pytest.mark.parametrize(
    "shape", [(5, 48), (3, 20, 7), (7, 3, 200), (3, 4, 5, 6), (3, 13, 5, 14), (2, 9, 4, 140), (40, 3)]
)
def test_axes(shape):
    for count in range(1, len(shape) + 1):
        for axes in itertools.combinations(range(len(shape)), count):
            for op in ("sum", "mean"):
                _check(op, _values(*shape), axes)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, bfloat16], ids=["float64", "float16", "bfloat16"])
def test_dtypes(dtype):
    for shape, axes in (((3, 300), (1,)), ((3, 5, 40), (0, 2)), ((9, 4), (0,)), ((2, 3, 4, 5), (0, 2))):
        _check("sum", _values(*shape, dtype=dtype), axes)


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_threads(order):
    gpu = EmulatedGpu(order=order)
    for shape, axes in (((3, 700), (1,)), ((21_000,), (0,)), ((9, 37), (1,)), ((5, 3, 140), (0, 2))):
        _check("sum", _values(*shape), axes, gpu)


def test_many_numbers_in_turn_have_another_kernel():
    with pytest.raises(AssertionError, match="3000 numbers in turn, for 2 results only"):
        _check("sum", _values(3000, 2), (0,))
    with pytest.raises(AssertionError, match="3 runs of numbers apart"):
        _check("sum", _values(*(2,) * 6), (0, 2, 4))


def test_means_of_whole_planes_are_added_in_turn():
    x = _values(3, 2, 13, 9)
    attrs = {"kernel": (13, 9), "stride": (13, 9), "padding": ((0, 0), (0, 0)), "count_include_pad": False}
    same(on_gpu("avg_pool2d", (x,), attrs), by_reference("avg_pool2d", (x,), attrs))
