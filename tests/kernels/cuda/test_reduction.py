"""Reductions on the emulated GPU: sums, means, products, extremes and places of extremes."""

import itertools

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.dispatch import get_op
from megengine.kernels.cuda.reduction import KERNELS, reduced
from megengine.kernels.cuda.runtime import installed

OPS = tuple(KERNELS)
REDUCTIONS = ("sum", "mean", "prod", "max", "min")
# all dtypes but float32; each is a program that takes a second to compile
DTYPES = [pytest.param(np.dtype(t), id=np.dtype(t).name) for t in (np.int32, np.bool_, np.float16)] + [
    pytest.param(np.dtype(t), id=np.dtype(t).name, marks=pytest.mark.slow)
    for t in ("b", "B", "h", "H", "I", "l", "L", "d", bfloat16)
]
# one case for each kernel and its edges: short rows, rows, split rows, pieces of rows, columns, threads, several passes
SHAPES = [
    ((3, 1), (1,)),
    ((5, 31), (1,)),
    ((300, 32), (1,)),
    ((7, 129), (1,)),
    ((2, 1025), (1,)),
    ((3, 4, 1100), (1, 2)),
    ((4, 3, 36), (0, 2)),
    ((3, 2, 800), (0, 2)),
    ((6, 3, 5), (0, 2)),
    ((100, 3), (0,)),
    ((2, 70, 33), (1,)),
    ((2, 9, 64), (1,)),
    ((3, 5, 7), (1,)),
    ((2, 3, 4, 5), (1, 3)),
    ((3, 2, 4, 2, 3), (0, 2, 4)),
    ((2, 1, 3), (1,)),
    ((6,), None),
    ((), None),
]


def _values(shape, dtype, seed=0):
    """Numbers with ties, of all signs that the dtype has."""
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return np.round(rng.uniform(-4, 4, shape) * 16).astype(np.float32).astype(dtype) / dtype.type(16)


def _attrs(op, axes, ndim, keepdims=False):
    if op.startswith("arg"):
        return {"axis": 0 if axes is None else axes[-1], "keepdims": keepdims}
    return {"axis": axes, "keepdims": keepdims}


def _check(op, x, attrs, gpu=None):
    rough = x.dtype.kind not in "biu" and op in ("sum", "mean", "prod")
    size = {2: 1e-2, 4: 1e-5, 8: 1e-13}[x.dtype.itemsize] if rough else 0.0
    found = on_gpu(op, (x,), attrs, kernel=f"cuda_{op}", gpu=gpu)
    half = x.dtype.itemsize == 2 and x.dtype.kind not in "iu"  # a half's result is that of float32, rounded once
    wanted = by_reference(op, (x.astype(np.float32) if half else x,), attrs)
    same(found, [w.astype(x.dtype) if half and w.dtype == np.float32 else w for w in wanted], rtol=size, atol=size)
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", OPS)
def test_samples(op, dtype):
    for sample in get_op(op).samples():
        (x,) = (narrowed(v, dtype) for v in sample.inputs)
        _check(op, np.asarray(x), sample.attrs)


@pytest.mark.parametrize("op", OPS)
def test_shapes(op):
    for shape, axes in SHAPES:
        if op.startswith("arg") and not shape:
            continue
        x = _values(shape, np.dtype(np.float32))
        x = np.where(x == 0, 1, np.sign(x) * 0.9 + 0.1 * np.tanh(x)).astype(np.float32) if op == "prod" else x
        for keepdims in (False, True):
            _check(op, x, _attrs(op, axes, len(shape), keepdims))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(op, dtype):
    for shape, axes in (((3, 40), (1,)), ((2, 640), (1,)), ((40, 3), (0,)), ((2, 6, 16), (1,)), ((3, 5, 2, 4), (1, 3))):
        if op == "prod" and dtype.kind not in "biu":
            x = (1 + _values(shape, np.dtype(np.float32)) / 64).astype(dtype)
        else:
            x = _values(shape, dtype)
        _check(op, x, _attrs(op, axes, len(shape)))


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_threads(order):
    gpu = EmulatedGpu(order=order)
    for op in ("sum", "argmax", "max"):
        for shape, axes in (((2, 1030), (1,)), ((90, 9), (0,)), ((2, 72, 40), (1,)), ((40, 33), (1,))):
            _check(op, _values(shape, np.dtype(np.float32)), _attrs(op, axes, len(shape)), gpu)
    assert {kernel for _, kernel in gpu.launched} >= {"cuda_reduce_groups", "cuda_reduce_columns", "cuda_reduce_rows"}


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin"])
def test_nan_and_infinities(op):
    x = np.array([[1, np.nan, 3, np.nan], [np.inf, 2, np.inf, -np.inf], [-np.inf] * 4, [np.nan] * 4], np.float32)
    for axis in (0, 1):
        for dtype in (np.float32, np.float16, np.float64):
            _check(op, x.astype(dtype), _attrs(op, (axis,), 2))
    long = np.full((2, 1500), -np.inf, np.float32)
    long[1, [700, 1400]] = np.nan
    _check(op, long, _attrs(op, (1,), 2))


def test_ties_name_the_first():
    for shape, axis in (((3, 700), 1), ((3, 40), 1), ((300, 3), 0), ((2, 5000), 1)):
        x = np.random.default_rng(0).integers(0, 3, shape).astype(np.int32)
        for op in ("argmax", "argmin"):
            _check(op, x, _attrs(op, (axis,), 2))


def test_no_elements():
    for shape, axes in (((0, 3), (0,)), ((0, 3), (1,)), ((0,), None), ((2, 0, 3), (0, 1)), ((4, 3, 0), (0, 2))):
        for op in ("sum", "prod", "mean"):
            _check(op, np.zeros(shape, np.float32), _attrs(op, axes, len(shape)))
        _check("sum", np.zeros(shape, np.int64), _attrs("sum", axes, len(shape)))
    _check("max", np.zeros((0, 3), np.float32), {"axis": (1,), "keepdims": True})


def test_sums_of_few_results_take_two_launches():
    gpu = EmulatedGpu()
    x = _values((40_000,), np.dtype(np.float32))
    _check("sum", x, {"axis": None, "keepdims": False}, gpu)
    assert [kernel for _, kernel in gpu.launched] == ["cuda_reduce_rows_wide", "cuda_reduce_groups"]
    gpu = EmulatedGpu()
    _check("sum", _values((4000, 8), np.dtype(np.float32)), {"axis": (0,), "keepdims": False}, gpu)
    assert len(gpu.launched) == 2


def test_sums_are_as_accurate_as_pairwise():
    x = np.full(200_001, 0.1, np.float32)
    exact = float(np.sum(x, dtype=np.float64))
    (ours,) = on_gpu("sum", (x,), {"axis": None, "keepdims": False}, kernel="cuda_sum")
    (theirs,) = by_reference("sum", (x,), {"axis": None, "keepdims": False})
    assert abs(float(ours) - exact) <= max(abs(float(theirs) - exact), 2e-7 * exact)


def test_one_function_for_other_kernels():
    x = _values((4, 5, 6), np.dtype(np.float32))
    with installed(EmulatedGpu()) as gpu:
        found = reduced("sum", gpu.upload(x), (0, 2), (5,)).numpy()
    np.testing.assert_allclose(found, x.sum((0, 2)), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_all_sets_of_axes(op):
    shape = (3, 2, 4, 3, 5)
    x = _values(shape, np.dtype(np.float32))
    x = np.where(x == 0, 1, np.sign(x)).astype(np.float32) if op == "prod" else x
    for count in range(1, 6):
        for axes in itertools.combinations(range(5), count):
            _check(op, x, _attrs(op, axes, 5))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 4095, 4096, 4097])
@pytest.mark.parametrize("other", [1, 3, 4, 64])
def test_lengths(n, other):
    for op in ("sum", "argmax"):
        _check(op, _values((n, other), np.dtype(np.float32)), _attrs(op, (0,), 2))
        _check(op, _values((other, n), np.dtype(np.float32)), _attrs(op, (1,), 2))
