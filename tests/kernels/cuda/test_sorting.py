"""Ops that order, count and choose elements, on the emulated GPU, beside NumPy: the same results, ties and NaN too."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.dispatch import get_op
from megengine.kernels.cuda import ordering, sorting, walks

INTEGERS = [np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64]
DTYPES = [*INTEGERS, np.float32, np.float64]
# one element, the end of a warp, one more than the shortest rows that one block sorts, and than the longest
LENGTHS = [1, 2, 3, 31, 64, 65, 257]


def numbers(*shape, dtype=np.float32, seed=0):
    """Few different numbers, so that many are equal; NaN, -0.0 and infinities among floats."""
    rng = np.random.default_rng(seed)
    values = rng.integers(-4, 5, shape)
    if np.dtype(dtype).kind in "iub":
        return (values > 0 if dtype is np.bool_ else values).astype(dtype)
    values = values.astype(np.float64) / 4
    values.reshape(-1)[::7] = np.nan
    values.reshape(-1)[3::11] = np.inf
    values.reshape(-1)[4::13] = -0.0
    return values.astype(dtype)


def check(op, inputs, gpu=None, rtol=0.0, **attrs):
    same(on_gpu(op, inputs, attrs, gpu=gpu), by_reference(op, inputs, attrs), rtol=rtol)


@pytest.mark.parametrize("op", sorting.KERNELS)
def test_samples(op):
    rtol = 1e-6 if op == "cumsum" else 0.0
    for sample in get_op(op).samples():
        for inputs in ([narrowed(x) for x in sample.inputs], sample.inputs):
            same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", [*DTYPES, np.float16, bfloat16])
def test_order_of_every_dtype(dtype):
    for length in (5, 64):
        for down in (False, True):
            x, attrs = numbers(3, length, dtype=dtype), {"k": length, "descending": down}
            half = np.dtype(dtype).itemsize == 2 and np.dtype(dtype).kind not in "iu"
            values, order = by_reference("topk", (x.astype(np.float32) if half else x,), attrs)
            same(on_gpu("topk", (x,), attrs), (values.astype(dtype), order))
    if np.dtype(dtype).kind in "iu":
        ends = np.array([np.iinfo(dtype).min, 0, np.iinfo(dtype).max, 1, np.iinfo(dtype).min], dtype)
        for down in (False, True):
            check("topk", (ends,), k=5, descending=down)


@pytest.mark.parametrize("order", ORDERS)
def test_order_of_short_rows(order):
    for length in LENGTHS:
        x = numbers(2, 2, length, seed=length)
        check("topk", (x,), EmulatedGpu(order=order), k=max(length // 2, 1), descending=True)
    check("topk", (numbers(0, 5),), k=2, descending=True)
    check("topk", (numbers(3, 0),), k=0, descending=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.int64, marks=pytest.mark.slow)])
def test_order_of_long_rows(order, dtype, monkeypatch):
    monkeypatch.setattr(ordering, "SHORT", (256,))
    monkeypatch.setattr(ordering, "FEW", 16)
    for rows, length in ((2, 300), (1, 2500)):
        gpu = EmulatedGpu(order=order)
        check("topk", (numbers(rows, length, dtype=dtype) * 1000,), gpu, k=length // 3, descending=True)
        assert "place_digits" in {kernel for _, kernel in gpu.launched}


@pytest.mark.parametrize("order", ORDERS)
def test_the_first_ones_of_long_rows_are_found_in_chunks(order, monkeypatch):
    monkeypatch.setattr(ordering, "SHORT", (64, 256))
    for rows, length, k in ((2, 257, 1), (1, 512, 5), (2, 513, 7), (1, 5000, 40), (1, 300, 64)):
        gpu = EmulatedGpu(order=order)
        for down in (False, True):
            check("topk", (numbers(rows, length),), gpu, k=k, descending=down)
        assert {kernel for _, kernel in gpu.launched} == {"sort_rows"}


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_goes_on_with_the_next_row(order, monkeypatch):
    monkeypatch.setattr(walks, "BLOCKS", 2)
    check("topk", (numbers(7, 30),), EmulatedGpu(order=order), k=9, descending=True)
    x = np.arange(3 * 2500, dtype=np.int32).reshape(3, 2500) % 17
    check("cumsum", (x,), EmulatedGpu(order=order), axis=1, reverse=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_sums_of_every_dtype(dtype):
    x = numbers(3, 70, 2, dtype=dtype)
    rtol = 1e-6 if np.dtype(dtype).kind == "f" else 0.0
    for axis in (0, 1, 2, -2):
        for reverse in (False, True):
            check("cumsum", (x,), axis=axis, reverse=reverse, rtol=rtol)


@pytest.mark.parametrize("order", ORDERS)
def test_running_sums_of_long_rows(order):
    for length in (63, 64, 65, 1023, 1024, 1025, 3000):
        x = np.arange(2 * length, dtype=np.int32).reshape(2, length) % 17
        for reverse in (False, True):
            check("cumsum", (x,), EmulatedGpu(order=order), axis=1, reverse=reverse)


@pytest.mark.parametrize("shape", [(3, 0), (0, 3), (3, 0, 2)])
def test_sums_along_axes_of_nothing(shape):
    for axis in range(len(shape)):
        check("cumsum", (np.zeros(shape, np.float32),), axis=axis, reverse=False)


def test_running_sums_lose_no_more_digits_than_numpy():
    x = np.random.default_rng(0).standard_normal(30000).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64))
    (got,) = on_gpu("cumsum", (x,), {"axis": 0, "reverse": False})
    (want,) = by_reference("cumsum", (x,), {"axis": 0, "reverse": False})
    assert np.abs(got - exact).max() <= np.abs(want - exact).max()


@pytest.mark.parametrize("dtype", [*DTYPES, np.float16, bfloat16])
def test_places_that_are_not_zero(dtype):
    check("nonzero", (numbers(3, 5, 7, dtype=dtype),))


def test_places_in_long_arrays():
    for x in (numbers(2500), numbers(0, 3), np.zeros((40, 40), bool), np.ones((40, 40), bool), np.float32(0)):
        check("nonzero", (x,))


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32, np.int64, np.float32, np.float64])
def test_different_elements_and_rows(dtype, sort):
    x = numbers(6, 2, 5, dtype=dtype)
    for axis in (None, 0, 1, -1):
        check("unique", (x,), axis=axis, sort=sort)
    whole = np.abs(np.nan_to_num(numbers(40, 3, dtype=dtype), posinf=2)).astype(dtype)  # rows without NaN repeat
    check("unique", (whole,), axis=0, sort=sort)
    check("unique", (x[:0],), axis=None, sort=sort)
    check("unique", (x[:1, :1, :1],), axis=1, sort=sort)


def boxes(n, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    corners = rng.integers(0, 20, (n, 2))
    sizes = rng.integers(0, 12, (n, 2))
    return np.concatenate([corners, corners + sizes], 1).astype(dtype)


@pytest.mark.parametrize("order", ORDERS)
def test_boxes_around_words_of_64(order):
    for n in (1, 2, 63, 64, 65, 150):
        scores = numbers(n, seed=n)
        for limit in (None, 0, 3, 70):
            check("nms", (boxes(n, n), scores), EmulatedGpu(order=order), threshold=0.3, limit=limit)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_boxes_that_touch_and_boxes_of_nothing(dtype):
    square = np.array([[0, 0, 2, 2], [1, 0, 3, 2], [0, 0, 2, 2], [5, 5, 5, 5], [5, 5, 5, 5], [0, 0, np.nan, 1]], dtype)
    scores = np.array([1, 1, 1, 2, 2, 0], dtype)
    for threshold in (0.0, 1 / 3, 0.3333, 0.99, 1.0):
        check("nms", (square, scores), threshold=threshold, limit=None)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("center", [False, True])
def test_boxes_of_batches_and_classes(order, center):
    scores = numbers(2, 3, 70)
    for limit, least in ((5, 0.0), (100, -np.inf), (2**40, 0.25)):
        bounds = (np.array([limit]), np.array([0.25], np.float32), np.array(least, np.float32))
        inputs = (np.stack([boxes(70, 1), boxes(70, 2)]), scores, *bounds)
        check("batched_nms", inputs, EmulatedGpu(order=order), center=center)


def test_numbers_up_to_a_limit():
    for limit in (-3, 0, 1, 300):
        check("numbers", (np.array(limit),))
