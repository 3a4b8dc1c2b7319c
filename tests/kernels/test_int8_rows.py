"""Products of two tensors, softmax, normalization, means and broadcasting pairs in integers: equal to the reference."""

import numpy as np
import pytest

from megengine.core.dtype import quint8
from megengine.dispatch import apply
from megengine.kernels import isa
from megengine.kernels.reference import integer
from megengine.tensor import Tensor
from tests.kernels.test_int8 import KINDS, check, values

f32 = np.float32


@pytest.fixture(params=isa.available())
def level(request):
    with isa.capped(request.param):
        yield request.param


def clamp(out, margin=0):
    dtype = KINDS[out]
    return {"lo": dtype.qmin - dtype.zero_point, "hi": dtype.qmax - dtype.zero_point - margin, "dtype": dtype}


def check_product(shapes, kinds, out, *, turned=(False, False), name="int8_product", margin=0):
    dtypes = [KINDS[k] for k in kinds]
    arrays = [values(d, s, i) for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))]
    depth = shapes[0][-2 if turned[0] else -1]
    attrs = {"transpose_a": turned[0], "transpose_b": turned[1], "m": float(f32(1 / (90 * np.sqrt(depth))))}
    attrs |= {"lo": 0, "hi": 0, "dtype": "float32"} if out == "float32" else clamp(out, margin)
    check("qmatmul", arrays, dtypes, attrs, name=name)


SHAPES = {
    "one-number": ((1, 1), (1, 1)),
    "tails": ((5, 7), (7, 19)),
    "whole-blocks": ((12, 64), (64, 128)),
    "stacks": ((3, 13, 33), (3, 33, 70)),
    "stacks-broadcast": ((2, 1, 6, 5, 8), (1, 4, 1, 8, 3)),
    "one-b": ((3, 25, 17), (17, 65)),
    "one-a": ((4, 9), (3, 9, 5)),
}


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("kinds", [("u8", "s8"), ("u8z", "u8z"), ("s8z", "s8z"), ("s8", "u8")])
@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_with_zero_points_and_transposes_on_both_sides(level, case, kinds, turned):
    shapes = [(*s[:-2], s[-1], s[-2]) if t else s for s, t in zip(SHAPES[case], turned, strict=True)]
    check_product(shapes, kinds, "u8z", turned=turned)


@pytest.mark.parametrize("out", ["u8", "s8z", "float32"])
@pytest.mark.parametrize("margin", [0, 9])
def test_results_of_products(level, out, margin):
    check_product(((2, 9, 30), (2, 30, 34)), ("s8z", "u8z"), out, margin=margin)


def test_a_product_of_values_with_four_axes_runs_natively_in_eager_calls():
    check_product(((2, 3, 5, 8), (2, 3, 8, 7)), ("u8z", "s8z"), "u8", name="int8_product_in_rows")


PAIRS = [
    ((4, 33), (33,)),
    ((4, 1), (1, 33)),
    ((2, 3, 5, 7), (3, 1, 1)),
    ((2, 3, 5, 7), (5, 7)),
    ((3, 1, 40), (1, 5, 1)),
    ((2, 300, 3), ()),
    ((), (6,)),
]


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("op", ["qadd", "qmul", "qmaximum", "qminimum"])
def test_pairs_that_broadcast(level, shapes, first, op):
    shapes, dtypes = (shapes, shapes[::-1])[first], [KINDS["u8z"], KINDS["s8z"]]
    factors = {"m": 0.0078125} if op == "qmul" else {"ra": 0.75, "rb": -float(integer.cut16(1.37))}
    name = {"qadd": "int8_broadcast_add", "qmul": "int8_broadcast_multiply"}.get(op, f"int8_{op[1:]}")
    arrays = [values(d, s, i) for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))]
    check(op, arrays, dtypes, {**factors, **clamp("u8z", 3)}, name=name)


@pytest.mark.parametrize("op", ["qmaximum", "qminimum"])
def test_extremes_of_equal_shapes(level, op):
    arrays = [values(KINDS[k], (5, 37), i) for i, k in enumerate(("u8", "s8z"))]
    attrs = {"ra": 1.0, "rb": 1.5, **clamp("s8")}
    check(op, arrays, [KINDS["u8"], KINDS["s8z"]], attrs, name=f"int8_{op[1:]}")


@pytest.mark.parametrize(
    ("shape", "axis"), [((3, 1), 1), ((5, 17), -1), ((2, 33, 3), 1), ((2, 5, 4, 3), 1), ((7, 400), 0)]
)
@pytest.mark.parametrize("kind", ["u8z", "s8"])
@pytest.mark.parametrize("scale", [0.0001, 0.05, 3.0])
def test_softmax(level, shape, axis, kind, scale):
    arrays = [values(KINDS[kind], shape, 1), integer.softmax_table(scale)]
    attrs = {"axis": axis, "dtype": KINDS["u8"]}
    check("qsoftmax", arrays, [KINDS[kind], arrays[1].dtype], attrs, name="int8_softmax", constants=(1,))


@pytest.mark.parametrize(("shape", "axes"), [((1, 1), 1), ((5, 17), 1), ((3, 4, 5), 2), ((2, 256), 1), ((1, 40000), 1)])
@pytest.mark.parametrize("kind", ["u8", "u8z", "s8z"])
@pytest.mark.parametrize("centred", [True, False])
def test_normalization(level, shape, axes, kind, centred):
    rng, tail = np.random.default_rng(0), shape[len(shape) - axes :]
    arrays = [values(KINDS[kind], shape, 1), (rng.random(tail) * 40).astype(f32), rng.normal(0, 9, tail).astype(f32)]
    attrs = {"axes": axes, "E": 0.37, "centred": centred, "dtype": KINDS["u8z"]}
    check("qnorm", arrays, [KINDS[kind], *[a.dtype for a in arrays[1:]]], attrs, name="int8_normalize")


def test_rows_of_one_value_have_the_bias(level):
    arrays = [np.full((3, 16), 200, np.uint8), np.ones(16, f32), np.arange(16, dtype=f32)]
    attrs = {"axes": 1, "E": 1e-6, "centred": True, "dtype": KINDS["u8"]}
    check("qnorm", arrays, [KINDS["u8"], *[a.dtype for a in arrays[1:]]], attrs, name="int8_normalize")


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((5, 17), (1,)), ((2, 9, 21), (1,)), ((2, 3, 4), None), ((4, 6, 5), (0, 1)), ((2, 6, 3, 4), (1,))],
)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize(("kind", "out"), [("u8z", "s8"), ("s8z", "u8z")])
def test_means_along_axes_that_are_neighbours_in_memory(level, shape, axis, keepdims, kind, out):
    attrs = {"axis": axis, "keepdims": keepdims, "dtype": KINDS[out]}
    check("qmean", [values(KINDS[kind], shape, 1)], [KINDS[kind]], attrs, name="int8_block_mean")


@pytest.mark.parametrize("op", ["qmean", "qsum"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((2, 8, 9, 7), (2,)),
        ((2, 8, 9, 7), (3,)),
        ((1, 8, 9, 3, 5), (1,)),
        ((2, 8, 3, 5, 6), (0,)),
        ((2, 3, 4, 5), (1, 2)),
    ],
)
def test_what_is_left_of_pictures_and_volumes_may_lie_in_another_order(op, shape, axis):
    kind, out = KINDS["u8z"], quint8(0.75, 90)
    x = values(kind, shape, 1)
    got = apply(op, Tensor._wrap(x, kind), axis=axis, keepdims=False, dtype=out)._storage()
    total = (x.astype(np.int64) - kind.zero_point).sum(axis)
    count = 1 if op == "qsum" else x.size // total.size
    real = total * kind.scale / count / 0.75 + 90
    assert np.abs(got - np.clip(real, 0, 255)).max() <= 0.5 + 1e-3


RESIZED = {
    "wider": ((2, 3, 5, 6), (8, 11)),
    "vectors": ((1, 70, 4, 3), (7, 5)),
    "narrower": ((2, 5, 9, 8), (3, 2)),
    "line": ((2, 5, 9), (14,)),
    "volume": ((1, 2, 3, 4, 5), (5, 4, 9)),
}


@pytest.mark.parametrize("case", RESIZED)
@pytest.mark.parametrize("kind", ["u8", "s8z"])
@pytest.mark.parametrize("mode", ["linear", "corners", "nearest", "cubic"])
def test_pictures_in_other_sizes(level, case, kind, mode):
    shape, size = RESIZED[case]
    attrs = {"size": size, "mode": "linear" if mode == "corners" else mode, "corners": mode == "corners"}
    check("resize", [values(KINDS[kind], shape, 0)], [KINDS[kind]], attrs, name="int8_resize")


def test_pictures_in_other_sizes_are_within_a_step_of_the_float_op():
    kind = KINDS["u8z"]
    x = Tensor._wrap(values(kind, (2, 3, 6, 7), 1), kind)
    for mode, corners in (("linear", False), ("linear", True), ("cubic", False)):
        attrs = {"size": (11, 10), "mode": mode, "corners": corners}
        real = apply("resize", apply("dequantize", x), **attrs)
        steps = apply("quantize", real, dtype=kind)._storage().astype(int) - apply("resize", x, **attrs)._storage()
        assert np.abs(steps).max() <= 1


@pytest.mark.parametrize("axes", [(1,), (2, 3), (3,), None])
def test_sums_along_axes(level, axes):
    kinds = [KINDS["s8z"]]
    attrs = {"axis": axes, "keepdims": True, "dtype": quint8(0.75, 90)}
    check("qsum", [values(kinds[0], (2, 20, 3, 5), 0)], kinds, attrs, name="int8_block_mean")


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((2, 33, 3, 5), 1), ((3, 7, 9), -1), ((2, 5, 4, 6), 2), ((1, 40, 70), 1), ((3, 40, 9, 15), 1), ((1, 5, 8, 8), 1)],
)
@pytest.mark.parametrize("kind", ["u8", "s8z"])
def test_a_table_for_each_place_of_an_axis(level, shape, axis, kind):
    tables = np.random.default_rng(0).integers(0, 256, (shape[axis], 256)).astype(np.uint8)
    x = values(KINDS[kind], shape, 0)
    attrs = {"dtype": KINDS["u8z"], "axis": axis}
    check("qtable", [x, tables], [KINDS[kind], tables.dtype], attrs, name="int8_table", constants=(1,))
