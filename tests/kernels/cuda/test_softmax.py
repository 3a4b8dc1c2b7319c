"""Softmax and its logarithm on the emulated GPU."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.dispatch import get_op

OPS = ("softmax", "log_softmax")
TOLERANCE = {"float32": 2e-6, "float64": 1e-14, "float16": 1e-3, "bfloat16": 1e-2}


def _check(op, x, axis, gpu=None):
    half = x.dtype.itemsize == 2  # a half's result is that of float32, rounded once
    wanted = by_reference(op, (x.astype(np.float32) if half else x,), {"axis": axis})
    rough = TOLERANCE[x.dtype.name]
    found = on_gpu(op, (x,), {"axis": axis}, kernel=f"cuda_{op}", gpu=gpu)
    same(found, [w.astype(x.dtype) for w in wanted], rtol=rough, atol=rough)


def _values(*shape, dtype=np.float32):
    return (np.random.default_rng(list(shape)).standard_normal(shape) * 3).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", OPS)
def test_samples(op, dtype):
    for sample in get_op(op).samples():
        _check(op, np.asarray(narrowed(sample.inputs[0], dtype)).astype(dtype), sample.attrs["axis"])


@pytest.mark.parametrize("op", OPS)
def test_rows(op):
    for n in (1, 2, 3, 4, 31, 32, 33, 127, 128, 129, 512, 513, 1000, 2052):
        _check(op, _values(3, n), -1)
    _check(op, _values(300, 8), 1)


@pytest.mark.parametrize("op", OPS)
def test_long_rows(op):
    gpu = EmulatedGpu()
    _check(op, _values(2, 16_388), 1, gpu)
    _check(op, _values(1, 8195), 1, gpu)
    assert [kernel for _, kernel in gpu.launched] == ["cuda_softmax_long_wide", "cuda_softmax_long"]


@pytest.mark.parametrize("op", OPS)
def test_columns(op):
    for shape, axis in (((2, 5, 3), 1), ((40, 33), 0), ((2, 1, 300), 1), ((1, 100, 7), 1), ((3, 4, 2, 5), 1)):
        _check(op, _values(*shape), axis)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=["float16", "bfloat16"])
def test_halves(dtype):
    for op in OPS:
        for n in (3, 8, 100, 512, 1024, 1032):
            _check(op, _values(3, n, dtype=dtype), 1)
        _check(op, _values(3, 5, 4, dtype=dtype), 1)
        _check(op, _values(1, 16_400, dtype=dtype), 1)


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_threads(order):
    gpu = EmulatedGpu(order=order)
    for shape, axis in (((2, 700), 1), ((1, 16_500), 1), ((70, 20), 0), ((40, 12), 1)):
        _check("softmax", _values(*shape), axis, gpu)


def test_infinities_and_nan():
    inf, nan = np.inf, np.nan
    few = [[1, inf, 2, -inf], [-inf] * 4, [nan, 1, 2, 3], [inf, inf, 0, 1], [-inf, -inf, 1, 2], [-inf, 1, -inf, 200]]
    x = np.array(few, np.float32)
    for op in OPS:
        with np.errstate(invalid="ignore"):
            _check(op, x, 1)
            _check(op, x, 0)
            for place in (0, 5000, 8999):
                for value in (inf, nan, -inf):
                    long = np.full((1, 9001), -inf, np.float32)
                    long[0, 3::7] = 1.5
                    long[0, place] = value
                    _check(op, long, 1)


def test_no_elements():
    for shape, axis in (((0, 4), 1), ((4, 0), 0), ((3, 0), 1)):
        _check("softmax", np.zeros(shape, np.float32), axis)


def _check_in_order(op, x, axis, gpu=None):
    with np.errstate(invalid="ignore"):
        wanted = by_reference(op, (x,), {"axis": axis})
    same(on_gpu(op, (x,), {"axis": axis}, kernel=f"cuda_{op}_in_order", gpu=gpu), wanted)


@pytest.mark.parametrize("op", OPS)
def test_bits_of_the_reference(op):
    for n in (*range(1, 20), *range(126, 146, 3), 255, 256, 257, 300, 1000, 1025, 4097):
        _check_in_order(op, _values(3, n), 1)
    for shape, axis in (
        ((2, 5, 3), 1),
        ((40, 33), 0),
        ((2, 1, 300), 1),
        ((70, 9), 1),
        ((3, 4, 2, 5), 1),
        ((3, 4, 1), 1),
    ):
        _check_in_order(op, _values(*shape), axis)
    few = [[1, np.inf, 2, -np.inf], [-np.inf] * 4, [np.nan, 1, 2, 3], [-np.inf, -np.inf, 1, 2]]
    for axis in (0, 1):
        _check_in_order(op, np.array(few, np.float32), axis)


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_threads_in_order(order):
    for n in (20, 700, 1300):
        _check_in_order("softmax", _values(2, n), 1, EmulatedGpu(order=order))
