"""Elements at places of indices, and windows that overlap: against loops in Python, for every dtype and layout."""

import itertools

import numpy as np
import pytest
from plan_kernels import check, draw, problem_of, run

import megengine.functional  # noqa: F401
from megengine import plan
from megengine.core.errors import IndexOutOfRangeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply, get_op
from megengine.kernels import _core
from megengine.traced_module import record

NUMBERS = ("f4", "i4", "i8", "i1", "u1")
MOVED = (*NUMBERS, "f2", "f8", "?", "i2")
COMBINE = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": np.maximum,
    "min": np.minimum,
}


def places(shape, length, dtype="i8"):
    """Places in an axis, some of them counted from the end."""
    return np.random.default_rng([length, *shape]).integers(-length, length, shape).astype(dtype)


def planned(op, arrays, attrs):
    """What a plan computes, and its kernel."""
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    compiled = plan.compile(record(lambda *inputs: apply(op, *inputs, **attrs), specs))
    return compiled(*arrays)[0], next(s.kernel for s in compiled.steps if s.op == op)


def gathered(x, index, axis):
    out = np.empty(index.shape, x.dtype)
    for at in np.ndindex(*index.shape):
        out[at] = x[(*at[:axis], index[at], *at[axis + 1 :])]
    return out


def scattered(x, index, updates, axis, reduction):
    out = x.copy()
    with np.errstate(over="ignore"):
        for at in np.ndindex(*index.shape):
            to = (*at[:axis], index[at], *at[axis + 1 :])
            out[to] = COMBINE[reduction](out[to], updates[at])
    return out


SHAPES = [
    ((5,), (7,), 0),
    ((3, 4), (2, 9), 1),
    ((4, 3), (1, 3), 0),
    ((3, 4, 5), (2, 6, 5), 1),
    ((2, 3, 4, 5), (2, 8, 4, 3), 1),
]


BLOCKS = [((5,), 1, (9,)), ((3, 4), 2, (2, 7)), ((6, 5), 1, (4,)), ((2, 3, 4, 5), 2, (8,))]


@pytest.mark.parametrize("index_type", ["i4", "i8"])
@pytest.mark.parametrize(("shape", "of_index", "axis"), SHAPES, ids=str)
def test_elements_are_taken_along_an_axis(shape, of_index, axis, index_type):
    index = places(of_index, shape[axis], index_type)
    for dtype in MOVED:
        x = draw(shape, "i4").astype(dtype)
        got, kernel = planned("gather_elements", [x, index], {"axis": axis - len(shape)})
        assert kernel == "own_gather"
        np.testing.assert_array_equal(got, gathered(x, index, axis))


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize(("shape", "of_index", "axis"), SHAPES, ids=str)
def test_updates_are_put_along_an_axis(shape, of_index, axis, reduction):
    index = places(of_index, shape[axis])
    for dtype in MOVED if reduction == "none" else NUMBERS:
        x, updates = draw(shape, "i4").astype(dtype), draw(of_index, "i4").astype(dtype)
        got, kernel = planned("scatter_elements", [x, index, updates], {"axis": axis, "reduction": reduction})
        assert kernel == "own_scatter"
        np.testing.assert_array_equal(got, scattered(x, index, updates, axis, reduction))


@pytest.mark.parametrize("dtype", [t for t in NUMBERS if t[0] in "iu"])
def test_integers_that_come_together_wrap_around(dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x, updates = np.random.default_rng(0).choice(np.array([least, least + 1, most - 1, most], dtype), (2, 4, 6))
    index = places(updates.shape, 4)
    for reduction in ("add", "mul"):
        got, _ = planned("scatter_elements", [x, index, updates], {"axis": 0, "reduction": reduction})
        np.testing.assert_array_equal(got, scattered(x, index, updates, 0, reduction))
    cols = x[:, :3].reshape(1, 1, 4, 1, 3, 1)
    attrs = {"size": (2, 1), "stride": (1, 1), "padding": ((2, 2), (0, 0)), "dilation": (1, 1)}
    got, _ = planned("fold", [cols], attrs)
    sums = [sum(int(x[o, at + 2 - o]) for o in range(4) if 0 <= at + 2 - o < 3) for at in (0, 1)]
    want = np.array([s % 2 ** (8 * x.itemsize) for s in sums], f"u{x.itemsize}").astype(dtype)
    np.testing.assert_array_equal(got.reshape(-1), want)


@pytest.mark.parametrize("reduction", COMBINE)
@pytest.mark.parametrize(("shape", "depth", "count"), BLOCKS, ids=str)
def test_updates_are_put_at_coordinates(shape, depth, count, reduction):
    index = np.stack([places(count, n) for n in shape[:depth]], -1)
    for dtype in MOVED if reduction == "none" else NUMBERS:
        x, updates = draw(shape, "i4").astype(dtype), draw((*count, *shape[depth:]), "i4").astype(dtype)
        want = x.copy()
        with np.errstate(over="ignore"):
            for at in np.ndindex(*count):
                to = tuple(index[at])
                want[to] = COMBINE[reduction](want[to], updates[at])
        got, kernel = planned("scatter_nd", [x, index, updates], {"reduction": reduction})
        assert kernel == "own_scatter_blocks"
        np.testing.assert_array_equal(got, want)


def test_nan_is_the_largest_and_the_smallest():
    x, updates = np.array([1, np.nan, 3, 4], "f4"), np.array([np.nan, 2, 5], "f4")
    for reduction in ("max", "min"):
        got, _ = planned("scatter_elements", [x, np.arange(3), updates], {"axis": 0, "reduction": reduction})
        assert np.isnan(got).tolist() == [True, True, False, False]


ALL = (None, None, None)


@pytest.mark.parametrize(
    ("shape", "pattern", "indices", "value"),
    [
        ((5,), ("i",), [(4,)], (4,)),
        ((5, 6), ("i", ALL), [(3,)], (3, 6)),
        ((5, 6), ("i", (4, None, -2)), [(3,)], (1, 3)),
        ((5, 6), (ALL, "i"), [(2, 2)], ()),
        ((5, 6, 7), ("i", ALL, "i"), [(3, 1), (4,)], (3, 4, 6)),
        ((4, 5, 6), ((1, 3, 1), "i", "i"), [(2,), (2,)], (2,)),
        ((2, 3, 4, 5), ("i", ALL, "i", "i"), [(2, 1), (2, 6), (2, 6)], (3,)),
    ],
    ids=str,
)
def test_values_are_put_where_indices_say(shape, pattern, indices, value):
    lengths = [n for n, part in zip(shape, pattern, strict=True) if part == "i"]
    given = [places(s, n) for s, n in zip(indices, lengths, strict=True)]
    supply = iter(given)
    key = tuple(next(supply) if part == "i" else slice(*part) for part in pattern)
    for dtype in MOVED:
        x, v = draw(shape, "i4").astype(dtype), draw(value, "i4").astype(dtype)
        want = x.copy()
        want[key] = v
        got, kernel = planned("set_index", [x, v, *given], {"pattern": pattern})
        assert kernel == "own_put"
        np.testing.assert_array_equal(got, want)


def test_of_several_values_for_a_place_the_last_one_stays():
    index = np.array([[2, 0], [2, 1], [0, 2]])[::-1, ::-1]
    values = np.arange(6, dtype="f4").reshape(3, 2)
    got, _ = planned("set_index", [np.zeros(3, "f4"), values, index], {"pattern": ("i",)})
    want = np.zeros(3, "f4")
    for at in np.ndindex(3, 2):
        want[index[at]] = values[at]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("op", ["gather_elements", "scatter_elements", "scatter_nd", "set_index"])
def test_places_outside_are_refused_as_by_eager_calls(op):
    attrs = {"set_index": {"pattern": ("i",)}, "scatter_nd": {"reduction": "add"}}.get(op, {"axis": 0})
    attrs |= {"reduction": "add"} if op == "scatter_elements" else {}
    x, index, updates = np.ones(3, "f4"), np.array([2, -3]), np.ones(2, "f4")
    for at in (3, -4):
        wrong = np.array([0, at])
        inputs = {"gather_elements": [x, wrong], "set_index": [x, updates, wrong]}.get(op, [x, wrong, updates])
        right = [index if array is wrong else array for array in inputs]
        if op == "scatter_nd":
            inputs, right = [[a[:, None] if a.dtype == "i8" else a for a in some] for some in (inputs, right)]
        specs = [TensorSpec(a.shape, a.dtype) for a in inputs]
        compiled = plan.compile(record(lambda *given: apply(op, *given, **attrs), specs))
        np.testing.assert_array_equal(compiled(*right)[0], get_op(op).reference(*right, **attrs))
        with pytest.raises(IndexOutOfRangeError, match=f"{op}: index {at} is out of range for axis 0 of length 3"):
            compiled(*inputs)


# shape, kernel, stride, padding, dilation
WINDOWS = [
    ((1, 1, 1), (1,), (1,), ((0, 0),), (1,)),
    ((2, 3, 7), (3,), (2,), ((1, 0),), (2,)),
    ((2, 2, 6, 6), (2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1)),
    ((1, 3, 7, 5), (3, 2), (2, 1), ((1, 2), (0, 1)), (1, 2)),
    ((1, 1, 4, 17), (4, 3), (3, 5), ((3, 3), (2, 2)), (1, 1)),
    ((1, 2, 4, 5, 3), (2, 3, 2), (2, 1, 1), ((0, 1), (1, 1), (0, 0)), (1, 1, 2)),
]


def windows(shape, kernel, stride, padding, dilation):
    """Lengths of the result, and of each of its elements the taps with their places in the input (None: padding)."""
    axes = [
        [[o * s - p[0] + t * d for t in range(k)] for o in range((n + sum(p) - d * (k - 1) - 1) // s + 1)]
        for n, k, s, p, d in zip(shape[2:], kernel, stride, padding, dilation, strict=True)
    ]
    found = {}
    for out in itertools.product(*(range(len(a)) for a in axes)):
        for tap in itertools.product(*map(range, kernel)):
            place = tuple(a[o][t] for a, o, t in zip(axes, out, tap, strict=True))
            inside = all(0 <= p < n for p, n in zip(place, shape[2:], strict=True))
            found[out, tap] = place if inside else None
    return tuple(map(len, axes)), found


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding", "dilation"), WINDOWS, ids=str)
def test_windows_are_unfolded_and_folded(shape, kernel, stride, padding, dilation):
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    out, found = windows(shape, kernel, stride, padding, dilation)
    for dtype in NUMBERS:
        x = draw(shape, "i4").astype(dtype)
        want = np.full((*shape[:2], *out, *kernel), 3, dtype)
        folded = np.zeros(shape, dtype)
        for (at, tap), place in found.items():
            if place is not None:
                want[:, :, *at, *tap] = x[:, :, *place]
                folded[:, :, *place] += want[:, :, *at, *tap]
        got, kernel_name = planned("unfold", [x], {"kernel": kernel, "value": 3.0, **geometry})
        assert kernel_name == "own_strided_unfold"
        np.testing.assert_array_equal(got, want)
        got, kernel_name = planned("fold", [want], {"size": shape[2:], **geometry})
        assert kernel_name == "own_fold"
        np.testing.assert_array_equal(got, folded)
    cols = draw((*shape[:2], *out, *kernel))
    check("fold", [cols], {"size": shape[2:], **geometry})


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("shape", "kernel", "stride", "padding", "dilation"), WINDOWS[1:4] + WINDOWS[5:], ids=str)
def test_places_of_the_largest_elements(shape, kernel, stride, padding, dilation, first):
    attrs = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation, "columns_first": first}
    for dtype in NUMBERS:
        x = draw(shape, "i4").astype(dtype)  # with ties
        check("max_pool_indices", [x], attrs)
    x = draw(shape)
    x.reshape(-1)[::5] = np.nan
    x.reshape(-1)[1::5] = -np.inf
    check("max_pool_indices", [x], attrs)
    out, found = windows(shape, kernel, stride, padding, dilation)
    x = np.random.default_rng(0).permutation(x.size).reshape(shape).astype("f4")
    (got,) = run(problem_of("max_pool_indices", [x], attrs), [x], 1)
    order = "F" if first else "C"
    for image, channel in np.ndindex(*shape[:2]):
        plane = x[image, channel]
        for at in np.ndindex(*out):
            best = max((plane[p], p) for (o, _), p in found.items() if o == at and p is not None)[1]
            begin = (image * shape[1] + channel) * plane.size
            assert got[image, channel, *at] == begin + np.ravel_multi_index(best, plane.shape, order=order)


@pytest.mark.parametrize(
    ("op", "arrays", "attrs"),
    [
        ("slice", [draw((4, 5))], {"starts": (3, 0), "stops": (3, 2), "steps": (1, 1)}),
        ("relu", [draw((0, 5))], {}),
        (
            "unfold",
            [draw((0, 2, 4))],
            {"kernel": (2,), "value": 0.0, "stride": (1,), "padding": ((0, 0),), "dilation": (1,)},
        ),
    ],
)
def test_a_result_without_elements_needs_no_work(op, arrays, attrs):
    got, kernel = planned(op, arrays, attrs)
    assert kernel == "own_nothing"
    assert got.shape == get_op(op).reference(*arrays, **attrs).shape


def test_a_part_without_elements():
    specs = [TensorSpec((2, 5), np.dtype("f4"))]
    compiled = plan.compile(record(lambda x: apply("split", x, sections=(2, 0, 3), axis=1), specs))
    x = draw((2, 5))
    for got, want in zip(compiled(x), np.split(x, [2, 2], 1), strict=True):
        np.testing.assert_array_equal(got, want)
    assert [s.kernel for s in compiled.steps if s.op == "split"] == ["own_strided_split"]


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="no reduction middle"):
        _core.scatter_step("middle", "float32", 4, 3, [3], [0], 1, 3, 8)
    with pytest.raises(ValueError, match="elements of 1, 2, 4 or 8 bytes expected"):
        _core.gather_step(16, [3], [0], 1, 3, 8)
    with pytest.raises(ValueError, match="a step for each axis expected"):
        _core.gather_step(4, [3], [], 1, 3, 8)
    with pytest.raises(ValueError, match="a stride for each coordinate expected"):
        _core.scatter_blocks_step("add", "float32", 4, 3, [3], [], 1, 1, 8)
