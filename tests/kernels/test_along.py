"""Steps along axes: the bits of the NumPy references, for every layout, level and cut into parts."""

import numpy as np
import pytest
from plan_kernels import check, draw, problem_of

import megengine.functional as F
from megengine.core.dtype import bfloat16
from megengine.core.errors import IndexOutOfRangeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.kernels import _core, along, isa
from megengine.kernels.memory import bits
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.tensor import tensor

SHAPES = [(3, 1), (5, 7), (2, 3, 31), (4, 32), (2, 3, 33), (97,), (6, 1000), (3, 400, 5), (2, 3, 4, 5, 6)]
PICTURES = [(2, 33, 3, 4), (1, 17, 9, 16), (2, 1, 30, 7), (3, 130, 1, 1), (1, 5, 12, 1)]


def subsets(ndim):
    return [tuple(a for a in range(ndim) if bits >> a & 1) for bits in range(1, 1 << ndim)]


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_reductions_over_any_axes(op, shape):
    x = draw(shape) * 0.5
    for axis in (None, *subsets(len(shape))):
        for keepdims in (True, False):
            out = problem_of(op, [x], {"axis": axis, "keepdims": keepdims}).outputs[0]
            check(op, [x], {"axis": axis, "keepdims": keepdims}, left_out=out.ndim == 4)


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("shape", PICTURES, ids=str)
def test_reductions_of_pictures(op, shape):
    native = ((1,), (2, 3))
    for axis in subsets(4):
        for keepdims in (True, False):
            check(op, [draw(shape)], {"axis": axis, "keepdims": keepdims}, left_out=axis not in native)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize(
    "shape", [(2, 33, 3, 4), (1, 17, 9, 16), (1, 5, 12, 1), (2, 300, 9, 15), (1, 256, 16, 17)], ids=str
)
def test_planes_of_bfloat16_are_summed_in_float32(op, shape):
    x = draw(shape).astype(bfloat16)
    x[0, 0, 0, 0] = np.nan
    problem = problem_of(op, [x], {"axis": (2, 3), "keepdims": True})
    want = get_op(op).reference(x.astype(np.float32), axis=(2, 3), keepdims=True).astype(bfloat16)
    kernel = getattr(along, f"own_{op}")
    source = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    for level in isa.available():
        for threads in (1, 2):
            out = np.zeros(want.shape, bfloat16)
            with isa.capped(level):
                assert kernel.usable(problem) is None
                _core.run_step(kernel.make_step(problem, {}, threads), [bits(source), bits(out)])
            np.testing.assert_array_equal(out.view(np.uint16), want.view(np.uint16))
    assert "bfloat16; only" in kernel.usable(problem_of(op, [x], {"axis": (1,), "keepdims": True}))


@pytest.mark.parametrize("dtype", ["i4", "i8", "i1", "u1"])
@pytest.mark.parametrize("op", ["sum", "max", "min", "prod"])
def test_reductions_of_integers(op, dtype):
    for shape in ((3, 4, 5), (2, 3, 300)):
        for axis in subsets(3):
            check(op, [draw(shape, dtype)], {"axis": axis, "keepdims": False})


@pytest.mark.parametrize("dtype", ["i4", "i8", "i1", "u1"])
def test_sums_and_products_of_integers_wrap_around(dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.random.default_rng(0).choice(np.array([least, least + 1, most - 1, most], dtype), (3, 300))
    for op, axis in (("sum", 0), ("sum", 1), ("prod", 0), ("prod", 1)):
        check(op, [x], {"axis": axis, "keepdims": False})
    for axis, reverse in ((0, False), (1, True)):
        check("cumsum", [x], {"axis": axis, "reverse": reverse})


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("n", [31, 32, 33, 63, 64, 65, 66, 95, 96, 97, 129, 508])
def test_extremes_of_long_rows(op, n):
    x = draw((n, n))
    np.fill_diagonal(x, 9.0 if op == "max" else -9.0)  # each place is the extreme of one row
    check(op, [x], {"axis": (1,), "keepdims": True})
    check(op, [x], {"axis": (0, 1), "keepdims": False})


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("op", ["max", "min"])
def test_extremes_at_every_instruction_set(op, level):
    with isa.capped(level):
        for n in (1, 15, 16, 17, 64, 79, 130, 300):
            x = draw((n, 150))
            x[n // 2, 77] = np.nan
            x[:, 3] = -np.inf if op == "max" else np.inf  # the neutral number, alone in its column
            for axis in ((0,), (1,), (0, 1)):
                check(op, [x], {"axis": axis, "keepdims": False})


@pytest.mark.parametrize("op", ["max", "min", "sum"])
def test_not_a_number_is_kept(op):
    x = draw((6, 150))
    x[2, 7] = x[3, 0] = x[4, 100] = x[5, 149] = np.nan
    for axis in ((0,), (1,), None):
        check(op, [x], {"axis": axis, "keepdims": False})


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_places_of_extremes(op, dtype):
    x = draw((4, 6, 5), dtype)
    x[:, 2] = x[:, 4]  # the first of equals
    if dtype == "f4":
        x[1, 3] = np.nan
    for axis in (0, 1, -1):
        for keepdims in (True, False):
            check(op, [x], {"axis": axis, "keepdims": keepdims})
    check(op, [draw((2, 9, 3, 4))], {"axis": 1, "keepdims": True})


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("n", [1, 15, 31, 32, 33, 48, 130, 1030])
def test_places_of_extremes_at_every_instruction_set(n, op, level):
    x = np.random.default_rng(n).integers(-3, 4, (n, 40)).astype(np.float32)  # many are equal
    x[n // 3 :: 5, 1:7] = x[n // 2, 9:12] = x[n - 1, 3] = np.nan
    x[:, 13], x[:, 14] = np.nan, -np.inf if op == "argmax" else np.inf
    x[n - 1, 15:20], x[0, 20] = 9.0 if op == "argmax" else -9.0, -0.0
    with isa.capped(level):
        for array in (x, np.ascontiguousarray(x.T), np.tile(x, (1, 30))):
            for axis in (0, 1):
                check(op, [array], {"axis": axis, "keepdims": False})


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "i4", "i8"])
def test_running_sums(dtype, reverse):
    for shape in ((7,), (3, 40), (2, 3, 4), (2, 5, 3, 4)):
        for axis in range(len(shape)):
            check("cumsum", [draw(shape, dtype)], {"axis": axis, "reverse": reverse})


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "i4", "i8"])
def test_the_largest(dtype, descending):
    x = draw((3, 40), dtype)
    x[:, 11] = x[:, 3]
    if dtype == "f4":
        x[1, 5] = x[1, 9] = np.nan
    for k in (1, 7, 40):
        check("topk", [x], {"k": k, "descending": descending})


@pytest.mark.parametrize("op", ["max", "min", "argmax", "argmin", "topk"])
def test_truth_values_are_compared_as_numbers(op):
    for shape in ((3, 40), (2, 5, 7)):
        for chosen in (-9, 0, 1, 9):  # all of them, some, none
            x = draw(shape) > chosen
            for axis in range(len(shape)):
                along_axis = {"axis": (axis,) if op in ("max", "min") else axis, "keepdims": False}
                check(op, [x], {"k": 3, "descending": True} if op == "topk" else along_axis)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("shape", [*SHAPES, *PICTURES], ids=str)
def test_softmax_along_any_axis(op, shape):
    x = draw(shape) * 9
    for axis in range(len(shape)):
        check(op, [x], {"axis": axis}, left_out=len(shape) == 4 and axis > 1)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
@pytest.mark.parametrize("n", [1, 7, 8, 9, 15, 17, 31, 33, 49, 1023, 1025])
def test_softmax_of_short_rows_that_are_taken_together(op, n):
    """Rows around 4 and 32, with NaN and infinities at their ends; the largest stands in any place."""
    for rows in (1, 3, 33, 70):
        x = draw((rows, n)) * 9
        x[0, -1], x[rows // 2, 0], x[-1, n // 2] = np.nan, np.inf, -np.inf
        x[np.arange(rows), np.arange(rows) * 5 % n] += 20
        with np.errstate(all="ignore"):
            check(op, [x], {"axis": 1})


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax_takes_no_subnormal_powers(op):
    """Numbers that a mask of -100 leaves are 0; those from 2^-126 on are not."""
    for n in (5, 16, 49):
        x = draw((7, n))
        x[:, 0] = 3
        x[:, 1:] -= np.linspace(84, 101, n - 1, dtype=np.float32)
        check(op, [x], {"axis": 1})
        check(op, [x], {"axis": 0})
    y = get_op("softmax").reference(np.float32([[0, -87.33654, -87.33655, -100]]), axis=1)
    assert y[0, 1] >= np.finfo(np.float32).smallest_normal
    assert y[0, 2:].tolist() == [0, 0]


@pytest.mark.parametrize("function", [F.softmax, F.logsoftmax])
def test_eager_softmax_has_the_bits_of_the_reference(function):
    for shape in ((5, 48), (2, 3, 4, 5), (7,)):
        x = draw(shape)
        for axis in range(len(shape)):
            op = "softmax" if function is F.softmax else "log_softmax"
            np.testing.assert_array_equal(function(tensor(x), axis).numpy(), get_op(op).reference(x, axis=axis))


WHOLE = (None, None, 1)
INDICES = np.array([[2, 0], [1, -1]])


@pytest.mark.parametrize("dtype", ["i4", "i8"])
@pytest.mark.parametrize(
    ("shape", "pattern", "indices"),
    [
        ((5, 7), ("i", WHOLE), [INDICES]),
        ((5, 7), (WHOLE, "i"), [INDICES]),
        ((5, 3, 7), (WHOLE, "i", (1, 6, 2)), [INDICES]),
        ((5, 3, 7), ("i", (None, None, -1), "i"), [INDICES, np.array([6, -7])]),
        ((5, 3, 7), (WHOLE, "i", "i"), [INDICES[:, None], np.array([0, 6])]),
        ((5,), ("i",), [np.array(3)]),
        ((3, 4), ("i", "i"), [INDICES, INDICES]),
    ],
)
@pytest.mark.parametrize("values", ["f4", "i8", "?"])
def test_elements_by_index(shape, pattern, indices, dtype, values):
    x = draw(shape, "f4").astype(values)
    check("index", [x, *(i.astype(dtype) for i in indices)], {"pattern": pattern})


def test_an_index_outside_is_refused_as_by_eager_calls():
    from megengine import plan
    from megengine.module import Module
    from megengine.traced_module import trace_module

    class Rows(Module):
        def forward(self, table, rows):
            return table[rows]

    made = plan.compile(trace_module(Rows(), tensor(draw((4, 3))), tensor(np.array([0, 3], np.int32))))
    assert made.steps[0].kernel == "own_take"
    np.testing.assert_array_equal(made(draw((4, 3)), np.array([-4, 2], np.int32))[0], draw((4, 3))[[-4, 2]])
    for wrong in (4, -5):
        with pytest.raises(IndexOutOfRangeError, match=f"index: index {wrong} is out of range for axis 0 of length 4"):
            made(draw((4, 3)), np.array([0, wrong], np.int32))


@pytest.mark.parametrize("dtype", ["i4", "i8"])
def test_one_hot(dtype):
    for index in (np.array(2), np.array([0, 4, 1]), np.array([[[3, 0], [1, 1]]])):
        check("one_hot", [index.astype(dtype)], {"depth": 5})


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("reciprocal", [True, False])
@pytest.mark.parametrize("factors", [0, 1, 2])
@pytest.mark.parametrize(("shape", "axes"), [((5, 7), 1), ((9, 300), 1), ((2, 3, 4, 5), 3), ((3, 2, 40), 2), ((6,), 1)])
def test_normalisation(shape, axes, factors, reciprocal, centred):
    attrs = {"axes": axes, "eps": 1e-5, "centred": centred, "reciprocal": reciprocal}
    tail = shape[len(shape) - axes :]
    check("fused_norm", [draw(shape) + 3, *[draw(tail)] * factors], attrs, left_out=len(shape) == 4)


NORM = {"eps": 1e-5, "centred": True, "reciprocal": False}


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize(
    ("op", "shapes", "attrs"),
    [
        *((op, [shape], {"axis": -1}) for op in ("softmax", "log_softmax") for shape in ((3, 1), (70, 49), (3, 1500))),
        ("softmax", [(2, 3, 5, 7)], {"axis": 1}),  # lies last in memory, and is added in turn
        ("fused_norm", [(9, 300)], {"axes": 1, **NORM}),
        ("fused_norm", [(7, 33), (33,)], {"axes": 1, **NORM, "centred": False, "reciprocal": True}),
        ("fused_norm", [(2, 5, 6), (5, 6), (5, 6)], {"axes": 2, **NORM}),
    ],
    ids=str,
)
def test_rows_of_bfloat16_are_computed_in_float32_and_rounded_once(op, shapes, attrs, level):
    arrays = [(draw(shape) + 1).astype(bfloat16) for shape in shapes]
    want = get_op(op).reference(*(a.astype("f4") for a in arrays), **attrs).astype(bfloat16)
    problem = problem_of(op, arrays, attrs)
    last = (lambda a: np.ascontiguousarray(a.transpose(0, 2, 3, 1))) if want.ndim == 4 else np.ascontiguousarray
    for threads in (1, 3):
        out = np.full(want.size + 16, 7, bfloat16)
        with isa.capped(level):
            kernel = family(op).for_plan(problem, {})[0]
            assert kernel.name in ("own_softmax", "own_norm")
            step = kernel.make_step(problem, {}, threads)
            _core.run_step(step, [*(bits(last(a)) for a in arrays), bits(out[: want.size])])
        np.testing.assert_array_equal(out[: want.size].view("u2"), last(want).reshape(-1).view("u2"))
        assert (out[want.size :] == 7).all()


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("pairs", [1, 2])
@pytest.mark.parametrize(("shape", "groups"), [((2, 6, 4, 5), 3), ((1, 5, 1), 5), ((3, 4, 300), 1), ((2, 7, 17, 3), 7)])
def test_channels_in_groups(shape, groups, pairs, level):
    x, factors, attrs = draw(shape) + 3, draw((2 * pairs, shape[1])), {"groups": groups, "eps": 1e-5}
    for dtype in (np.dtype("f4"), np.dtype("bfloat16")):
        given = x.astype(dtype)
        specs = [TensorSpec(shape, dtype), TensorSpec(factors.shape, dtype)]
        held = factors.astype(dtype)
        wide = [given.astype("f4"), held.astype("f4")]
        want = get_op("fused_channel_norm").reference(*wide, **attrs).astype(dtype)
        problem = Problem("fused_channel_norm", specs, specs[:1], attrs)
        for threads in (1, 3):
            out = np.full(x.size + 16, 7, dtype)
            with isa.capped(level):
                step = family(problem.op).for_plan(problem, {1: held})[0].make_step(problem, {1: held}, threads)
                _core.run_step(step, [bits(given), bits(out[: x.size])])
            np.testing.assert_array_equal(out[: x.size].astype("f4").reshape(shape), want.astype("f4"))
            assert (out[x.size :] == 7).all()


def test_halves_that_lie_apart_are_refused():
    with pytest.raises(ValueError, match="softmax_step: of halves rows alone are taken"):
        _core.softmax_step(outer=1, n=4, inner=2, in_turn=True, log=False, half=True, threads=1)


def test_wrong_factors_of_channels_are_refused():
    for rows, groups in ((3, 2), (2, 4), (2, 0)):
        with pytest.raises(ValueError, match="channel_norm_step: factors .2 or 4, channels., of whole groups"):
            _core.channel_norm_step(1, groups, 4, 1e-5, np.zeros((rows, 6), np.float32), False, 1)


@pytest.mark.parametrize(
    ("op", "dtype", "attrs", "reason"),
    [
        ("max", "f2", {"axis": (1,), "keepdims": True}, "float16; only float32, int32, int64, int8, uint8"),
        ("sum", "f4", {"axis": (3,), "keepdims": True}, r"axes \(3,\) of a value that lies channels-last"),
        ("prod", "f4", {"axis": (1, 3), "keepdims": True}, r"axes \(1, 3\) of a value that lies channels-last"),
        ("max", "f4", {"axis": (2,), "keepdims": False}, r"axes \(2,\) of \(2, 3, 4, 5\) leave others in another"),
        ("softmax", "f4", {"axis": 3}, r"axis 3 of \(2, 3, 4, 5\) lies apart"),
        ("topk", "f4", {"k": 1, "descending": True}, "the last axis lies apart"),
    ],
)
def test_what_is_left_out(op, dtype, attrs, reason):
    import re

    problem = problem_of(op, [draw((2, 3, 4, 5), dtype)], attrs)
    (found,) = {why for name, why in family(op).explain(problem, step=True) if name in KERNELS}
    assert re.match(reason, found)


KERNELS = ("own_sum", "own_mean", "own_prod", "own_extreme", "own_softmax", "own_top")


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="no reduction median"):
        _core.reduce_step("median", "float32", [3], last_reduced=True)
    with pytest.raises(ValueError, match="at least one length expected"):
        _core.reduce_step("max", "float32", [], last_reduced=True)
    with pytest.raises(ValueError, match="float32, int32, int64, int8 or uint8 expected, got float16"):
        _core.place_step(type="float16", outer=1, n=1, inner=1, most=True)
    with pytest.raises(ValueError, match="too many axes"):
        many, none = [[1] * 65] * 3, [[], [], []]
        _core.select_step(
            puts=False, start=0, block=4, bytes=4, front=many, shape=none, behind=none, indices=[], steps=[]
        )
