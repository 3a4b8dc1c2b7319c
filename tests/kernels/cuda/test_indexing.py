"""Ops that take and put elements at places named by arrays, on the emulated GPU, beside NumPy: equal bits."""

import itertools

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.core.errors import IndexOutOfRangeError
from megengine.dispatch import get_op
from megengine.kernels.cuda import indexing, rows, walks
from megengine.kernels.cuda.array import DeviceArray

ALL = (None, None, None)
DTYPES = [np.bool_, np.int8, np.uint8, np.int16, np.int32, np.float32, np.int64, np.float64]
REDUCTIONS = ("none", "add", "mul", "max", "min")


def rng():
    return np.random.default_rng(3)


def numbers(*shape, dtype=np.float32):
    values = rng().standard_normal(shape) * 3
    return (values > 0 if dtype is np.bool_ else values).astype(dtype)


def places(length, *shape, dtype=np.int32):
    """Indices from both ends, many of them twice."""
    low = 0 if np.dtype(dtype).kind == "u" else -length
    return rng().integers(low, length, shape).astype(dtype)


def check(op, inputs, gpu=None, **attrs):
    same(on_gpu(op, inputs, attrs, gpu=gpu), by_reference(op, inputs, attrs))


@pytest.mark.parametrize("op", indexing.KERNELS)
def test_samples(op):
    for sample in get_op(op).samples():
        for inputs in ([narrowed(x) for x in sample.inputs], sample.inputs):
            same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs))


SHAPE = (5, 4, 6, 3)
PATTERNS = [
    ("i", ALL, ALL, ALL),
    (ALL, "i", ALL, ALL),
    ((1, 4, 2), ALL, (None, None, -1), "i"),
    ("i", "i", ALL, ALL),
    (ALL, "i", "i", (0, 2, 1)),
    ("i", ALL, "i", ALL),
    ((None, None, -1), "i", (1, 5, 3), "i"),
    ("i", "i", "i", "i"),
    ((1, 1, 1), "i", ALL, ALL),
    (ALL, (0, 2, 1), (5, 1, -2), ALL),
]


def indices(pattern, wide):
    """Index arrays of a pattern: of one shape, or of shapes that broadcast."""
    lengths = [n for n, p in zip(SHAPE, pattern, strict=True) if p == "i"]
    shapes = itertools.cycle([(2, 3), (3,), (2, 1), (1,)] if wide else [(7,)])
    return tuple(places(n, *shape) for n, shape in zip(lengths, shapes, strict=False))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(pattern, wide):
    x, index = numbers(*SHAPE), indices(pattern, wide)
    check("index", (x, *index), pattern=pattern)
    (taken,) = by_reference("index", (x, *index), {"pattern": pattern})
    check("index_backward", (taken, *index), shape=SHAPE, pattern=pattern)
    check("set_index", (x, numbers(*taken.shape) + 9, *index), pattern=pattern)
    check("set_index", (x, np.float32(7), *index), pattern=pattern)
    if taken.size:
        check("set_index", (x, numbers(*taken.shape[1:]) + 9, *index), pattern=pattern)
        check("set_index", (x, numbers(*taken.shape[:-1], 1) + 9, *index), pattern=pattern)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_every_type_of_indices(dtype):
    x, index = numbers(9, 4), places(9, 3, 5, dtype=dtype)
    check("index", (x, index), pattern=("i", ALL))
    check("index", (x, index, places(4, 5)), pattern=("i", "i"))
    check("gather_elements", (x[:, :3], places(9, 6, 3, dtype=dtype)), axis=0)
    check("one_hot", (np.abs(index.astype(np.int16)).astype(dtype),), depth=10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type_of_elements(dtype):
    x, index = numbers(6, 8, dtype=dtype), places(6, 40)
    check("index", (x, index), pattern=("i", ALL))
    check("index_backward", (numbers(40, 8, dtype=dtype), index), shape=(6, 8), pattern=("i", ALL))
    check("set_index", (x, numbers(40, 8, dtype=dtype), index), pattern=("i", ALL))
    along = places(8, 6, 20)
    check("gather_elements", (x, along), axis=1)
    for reduction in REDUCTIONS:
        check("scatter_elements", (x, along, numbers(6, 20, dtype=dtype)), axis=1, reduction=reduction)
        check("scatter_nd", (x, index[:, None], numbers(40, 8, dtype=dtype)), reduction=reduction)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_halves_are_rounded_once(dtype):
    x, index, more = numbers(6, 8).astype(dtype), places(6, 40), numbers(40, 8).astype(dtype)
    check("index", (x, index), pattern=("i", ALL))
    check("set_index", (x, more, index), pattern=("i", ALL))
    wide = by_reference("index_backward", (more.astype(np.float32), index), {"shape": (6, 8), "pattern": ("i", ALL)})
    same(on_gpu("index_backward", (more, index), {"shape": (6, 8), "pattern": ("i", ALL)}), [wide[0].astype(dtype)])
    for reduction in REDUCTIONS:
        options = {"reduction": reduction}
        want = by_reference("scatter_nd", (x.astype(np.float32), index[:, None], more.astype(np.float32)), options)
        same(on_gpu("scatter_nd", (x, index[:, None], more), options), [want[0].astype(dtype)])


@pytest.mark.parametrize("order", ORDERS)
def test_many_indices_for_one_place_count_in_their_order(order):
    index, rows_ = places(5, 300), numbers(300, 3)
    attrs = {"shape": (5, 3), "pattern": ("i", ALL)}
    check("index_backward", (rows_, index), EmulatedGpu(order=order), **attrs)
    check("set_index", (numbers(5, 3), rows_, index), EmulatedGpu(order=order), pattern=("i", ALL))
    check("scatter_nd", (numbers(5, 3), index[:, None], rows_), EmulatedGpu(order=order), reduction="mul")


@pytest.mark.parametrize("width", [1, 2, 3, 4, 6, 8, 12, 16])
def test_rows_are_combined_in_wide_units(width):
    index = places(5, 60)
    for dtype in (np.float16, np.float32, np.float64, np.int32):
        rows_, attrs = numbers(60, width, dtype=dtype), {"shape": (5, width), "pattern": ("i", ALL)}
        wide = np.float32 if dtype is np.float16 else dtype
        (want,) = by_reference("index_backward", (rows_.astype(wide), index), attrs)
        same(on_gpu("index_backward", (rows_, index), attrs), [want.astype(dtype)])


def test_rows_at_other_addresses_are_combined():
    gpu, rows_, index = EmulatedGpu(), numbers(6, 4), places(3, 6)
    held = gpu.upload(np.concatenate([[0], rows_.ravel()]).astype(np.float32))
    shifted = DeviceArray(gpu, held.owner, held.address + 4, rows_.shape, rows_.dtype)
    attrs = {"shape": (3, 4), "pattern": ("i", ALL)}
    found = indexing._index_backward(problem_of("index_backward", (rows_, index), attrs), shifted, gpu.upload(index))
    same((found.numpy(),), by_reference("index_backward", (rows_, index), attrs))


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_more_indices_than_one_block_sorts(order):
    index, rows_ = places(700, 5000, dtype=np.int64), numbers(5000, 2)
    check("index_backward", (rows_, index), EmulatedGpu(order=order), shape=(700, 2), pattern=("i", ALL))


def test_not_a_number_stays_in_a_maximum():
    x = np.array([1, np.nan, 3, 4], np.float32)
    index, updates = np.array([0, 1, 2, 2, 3]), np.array([np.nan, 5, np.nan, 9, 2], np.float32)
    for reduction in ("max", "min"):
        check("scatter_elements", (x, index, updates), axis=0, reduction=reduction)


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
def test_places_named_by_coordinates(rank):
    x, shape = numbers(4, 5, 6), (9,) if rank else ()
    index = np.stack([places(n, 9) for n in x.shape[:rank]], 1) if rank else np.zeros((0,), np.int32)
    for reduction in REDUCTIONS:
        check("scatter_nd", (x, index, numbers(*shape, *x.shape[rank:])), reduction=reduction)


def test_elements_along_every_axis():
    x = numbers(3, 4, 5)
    for axis in (0, 1, 2, -2):
        shape = [2, 3, 4]
        shape[axis] = 7
        check("gather_elements", (x, places(x.shape[axis], *shape)), axis=axis)
        for reduction in ("none", "add"):
            updates = numbers(*shape)
            check("scatter_elements", (x, places(x.shape[axis], *shape), updates), axis=axis, reduction=reduction)


def test_empty_arrays():
    x, none = numbers(3, 4), np.zeros((0,), np.int32)
    check("index", (x, none), pattern=("i", ALL))
    check("index", (x[:, :0], places(3, 5)), pattern=("i", ALL))
    check("index_backward", (x[:0], none), shape=(3, 4), pattern=("i", ALL))
    check("set_index", (x, x[:0], none), pattern=("i", ALL))
    check("set_index", (x[:, :0], x[:2, :0], places(3, 2)), pattern=("i", ALL))
    check("gather_elements", (x, np.zeros((0, 4), np.int32)), axis=0)
    check("scatter_elements", (x, np.zeros((0, 4), np.int32), x[:0]), axis=0, reduction="add")
    check("scatter_nd", (x, np.zeros((0, 1), np.int32), x[:0]), reduction="max")
    check("scatter_nd", (x, np.zeros((0,), np.int32), x + 1), reduction="none")
    check("one_hot", (none,), depth=3)


REFUSED = [
    ("index", (numbers(3, 4), np.array([0, 5, 3])), {"pattern": ("i", ALL)}, "index: index 5 .* axis 0 of length 3"),
    ("index", (numbers(3, 4), np.array([0, -4])), {"pattern": (ALL, "i")}, None),
    ("index", (numbers(3, 4), np.array([-5, -7])), {"pattern": (ALL, "i")}, "index -7 .* axis 1 of length 4"),
    ("index", (numbers(3, 4), np.array([1]), np.array([9])), {"pattern": ("i", "i")}, "index 9 .* axis 1 of length 4"),
    (
        "index_backward",
        (numbers(1, 4), np.array([3])),
        {"shape": (3, 4), "pattern": ("i", ALL)},
        "index_backward: index 3",
    ),
    ("set_index", (numbers(3), np.float32(1), np.array([-4])), {"pattern": ("i",)}, "set_index: index -4"),
    ("gather_elements", (numbers(3), np.array([3])), {"axis": 0}, "gather_elements: index 3 .* axis 0 of length 3"),
    ("gather_elements", (numbers(0), np.array([1])), {"axis": 0}, "gather_elements: index 1 .* axis 0 of length 0"),
    (
        "scatter_elements",
        (numbers(3), np.array([-4]), numbers(1)),
        {"axis": 0, "reduction": "add"},
        "scatter_elements: index -4",
    ),
    ("scatter_nd", (numbers(3), np.array([[8]]), numbers(1)), {"reduction": "none"}, "scatter_nd: index 8 .* axis 0"),
    ("one_hot", (np.array([0, 3]),), {"depth": 3}, "one_hot: index 3 is out of range for 3 classes"),
    ("one_hot", (np.array([0, -1]),), {"depth": 3}, "one_hot: index -1 "),
    ("one_hot", (np.array([0, -(2**63)]),), {"depth": 3}, "one_hot: index -"),
    ("set_index", (numbers(3), np.float32(1), np.array([2**64 - 1], np.uint64)), {"pattern": ("i",)}, "of length 3"),
]


@pytest.mark.parametrize("op, inputs, attrs, match", REFUSED)
def test_indices_outside_are_refused(op, inputs, attrs, match):
    if match is None:
        check(op, inputs, **attrs)
        return
    with pytest.raises(IndexOutOfRangeError, match=match):
        on_gpu(op, inputs, attrs)
    with pytest.raises(IndexOutOfRangeError):
        by_reference(op, inputs, attrs)


def test_large_arrays_take_several_launches(monkeypatch):
    monkeypatch.setattr(walks, "LIMIT", 40)
    caches = (walks.move, indexing._plan, indexing._along, rows.plain_rows)
    for cache in caches:
        cache.cache_clear()
    try:
        x, index = numbers(4, 5, 7), places(5, 6)
        gpu = EmulatedGpu()
        check("index", (x, index), gpu, pattern=(ALL, "i", ALL))
        assert len(gpu.launched) > 3
        check("index", (x[0], index), pattern=("i", ALL))
        check("set_index", (x[0], numbers(6, 7), index), pattern=("i", ALL))
        check("index_backward", (numbers(6, 7), index), shape=(5, 7), pattern=("i", ALL))
        check("gather_elements", (x, places(4, 4, 5, 7)), axis=0)
        check("gather_elements", (x, places(5, 4, 5, 7)), axis=1)
        check("scatter_elements", (x, places(7, 4, 5, 7), x + 1), axis=2, reduction="add")
    finally:
        for cache in caches:
            cache.cache_clear()


def test_complex_numbers_are_taken_and_put():
    x, index = numbers(5, 4).astype(np.complex64) * (1 + 2j), places(5, 3)
    check("index", (x, index), pattern=("i", ALL))
    check("set_index", (x, x[:3] + 1, index), pattern=("i", ALL))
    check("gather_elements", (x, places(5, 2, 4)), axis=0)
    with pytest.raises(AssertionError, match="no kernel computes with complex64"):
        on_gpu("index_backward", (x[:3], index), {"shape": (5, 4), "pattern": ("i", ALL)})
