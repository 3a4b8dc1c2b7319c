"""Elementwise operations as steps: the references' bits for every type, layout, broadcast, level and cut into parts."""

import numpy as np
import pytest

import megengine.functional as F
from megengine import plan
from megengine.core.dtype import bfloat16
from megengine.core.errors import DivisionByZeroError
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply, get_op, infer
from megengine.kernels import _core, elementwise, isa
from megengine.kernels.memory import bits
from megengine.kernels.native import empty_for_step, from_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.tensor import Tensor
from megengine.traced_module import record

NUMBERS = ("i1", "u1", "i2", "u2", "i4", "i8", "f4", "f8")
TYPES = {
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum", "square", "neg", "abs", "sign"), NUMBERS),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), ("?", *NUMBERS)),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), ("?", *NUMBERS)),
    "logical_not": ("?",),
    **dict.fromkeys(
        (
            "div",
            "floor",
            "ceil",
            "round",
            "round_even",
        ),
        ("f4", "f8"),
    ),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), ("i1", "u1", "i2", "u2", "i4", "i8")),
    **dict.fromkeys(("left_shift", "right_shift"), ("i1", "u1", "i2", "u2", "i4", "i8")),
    **dict.fromkeys(("mod", "floor_div"), ("f4", "f8")),
    "atan2": ("f4",),
    **dict.fromkeys(("relu", "relu6"), NUMBERS),
    "clip": NUMBERS,
}
ATTRS = {"clip": {"lo": 1.0, "hi": 3.0}}


def array_of(shape, dtype, seed=0):
    rng = np.random.default_rng([seed, *shape])
    if dtype == "?":
        return rng.integers(0, 2, shape).astype("?")
    values = rng.integers(-5, 6, shape) / (2 if dtype[0] == "f" else 1)
    return np.asarray(values).astype(dtype)


def run(op, arrays, attrs, threads=1, name="own_elementwise"):
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem(op, specs, [infer(op, specs, attrs)], attrs)
    kernel = next(k for k in family(op).kernels if k.name == name)
    assert kernel.usable(problem) is None
    like = empty_for_step(problem.outputs[0])
    memory = np.full(like.nbytes + 128, 0xA5, np.uint8)
    out = memory[64 : 64 + like.nbytes].view(like.dtype).reshape(like.shape)
    _core.run_step(kernel.make_step(problem, {}, threads), [*(bits(to_step(a)) for a in arrays), bits(out)])
    assert (memory[:64] == 0xA5).all() and (memory[-64:] == 0xA5).all()
    return from_step(out)


def check(op, arrays, attrs=None, **options):
    attrs = attrs or ATTRS.get(op, {})
    with np.errstate(all="ignore"):
        want = get_op(op).reference(*arrays, **attrs)
    for level in isa.available():
        with isa.capped(level):
            for threads in (1, 3):
                np.testing.assert_array_equal(run(op, arrays, attrs, threads, **options), want)


@pytest.mark.parametrize("size", [1, 17, 1025])
@pytest.mark.parametrize(("op", "dtype"), [(op, t) for op, types in TYPES.items() for t in types])
def test_every_type(op, dtype, size):
    count = (
        1
        if op
        in ("square", "neg", "abs", "sign", "logical_not", "floor", "ceil", "round", "round_even", "relu", "relu6")
        else 2
    )
    check(op, [array_of((size,), dtype, k) for k in range(1 if op == "clip" else count)])


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "i8"])
@pytest.mark.parametrize("op", ["add", "sub", "mul", "square", "neg", "abs"])
def test_integers_wrap_around(op, dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    ends = np.array([least, least + 1, 0, 1, most // 2 + 1, most - 1, most], dtype)
    pairs = [np.resize(a, 1025) for a in (np.repeat(ends, ends.size), np.tile(ends, ends.size))]
    check(op, pairs[: 1 if op in ("square", "neg", "abs") else 2])


ENDS = (0.0, -0.0, 1.0, -1.0, 0.1, 5.5, -7.25, 1e-45, -1e-40, 3e38, -1e30, np.inf, -np.inf, np.nan)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("op", ["mod", "floor_div", "atan2"])
def test_quotients_and_angles_of_any_numbers(op, dtype):
    if op == "atan2" and dtype == "f8":
        pytest.skip("float32 only")
    a, b = (np.asarray(grid.ravel(), dtype) for grid in np.meshgrid(ENDS, ENDS))
    rng = np.random.default_rng(3)
    wide = [(rng.standard_normal(3000) * 10.0 ** rng.uniform(-30, 30, 3000)).astype(dtype) for _ in range(2)]
    check(op, [np.concatenate([a, wide[0]]), np.concatenate([b, wide[1]])])
    if op == "atan2":
        got, want = run(op, [a, b], {}), np.arctan2(a.astype("f8"), b.astype("f8"))
        np.testing.assert_allclose(got, want, rtol=6.1e-8, atol=1e-45)
        assert (np.isnan(want) | (np.signbit(got) == np.signbit(want))).all()


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "i8"])
@pytest.mark.parametrize("op", ["mod", "floor_div", "trunc_div"])
def test_quotients_of_integers(op, dtype):
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    ends = np.array([v for v in (least, least // 2, -5, -1, 0, 1, 7, most - 1, most) if v >= least], dtype)
    divisors = ends[ends != 0]
    a, b = np.repeat(ends, divisors.size), np.tile(divisors, ends.size)
    check(op, [a, b], name="own_integer_division")
    check(op, [array_of((5, 1), dtype), np.array([3, 2, 1], dtype)], name="own_integer_division")


@pytest.mark.parametrize("op", ["mod", "floor_div", "trunc_div"])
def test_a_divisor_of_zero_is_refused(op):
    compiled = plan.compile(record(lambda x, y: apply(op, x, y), [TensorSpec((4,), np.dtype("i4"))] * 2))
    assert [s.kernel for s in compiled.steps if s.op == op] == ["own_integer_division"]
    a = np.array([7, -7, 0, 5], "i4")
    np.testing.assert_array_equal(compiled(a, a + 1)[0], get_op(op).reference(a, a + 1))
    with pytest.raises(DivisionByZeroError, match=f"{op}: integer division by zero"):
        compiled(a, a)


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_halves_are_rounded_to_even_numbers_of_any_size(dtype):
    ends = [0.5, 1.5, 2.5, 2.0**22 + 0.5, 2.0**23 + 1, 2.0**51 + 0.5, 2.0**52 + 1, np.inf, np.nan, 0.49999997]
    values = np.array([*ends, *(-v for v in ends), 0.0, -0.0], dtype)
    check("round_even", [values])
    assert np.signbit(run("round_even", [values], {})).tolist() == np.signbit(np.rint(values)).tolist()


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_halves_are_rounded_away_from_zero_and_nothing_less(dtype):
    digits = np.finfo(dtype).nmant  # from 2 ** digits on all numbers are whole
    ends = np.array([0.5, 1, 1.5, 2.5, 2.0 ** (digits - 1) + 0.5, 2.0**digits, 2.0**digits + 1, np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        near = np.concatenate(
            [ends, np.nextafter(ends, ends.dtype.type(0)), np.nextafter(ends, ends.dtype.type(np.inf))]
        )
    values = np.concatenate([near, -near, np.array([0, np.finfo(dtype).tiny, np.finfo(dtype).max], dtype)])
    whole = np.trunc(values)
    with np.errstate(invalid="ignore"):
        want = np.where(np.abs(values - whole) >= 0.5, whole + np.copysign(1, values), whole).astype(dtype)
    got = F.round(Tensor(values, dtype=values.dtype)).numpy()
    np.testing.assert_array_equal(got, want, strict=True)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(want))
    if dtype != "f2":
        check("round", [values])
        assert get_op("round").reference(values).tobytes() == want.tobytes()
    numbers = np.array([2**62 + 1, -(2**53) - 1, 7])
    np.testing.assert_array_equal(F.round(Tensor(numbers, dtype="int64")).numpy(), numbers, strict=True)


@pytest.mark.parametrize("target", ["?", *NUMBERS])
@pytest.mark.parametrize("source", ["?", *NUMBERS])
def test_casts(source, target):
    check("cast", [array_of((3, 5), source)], {"dtype": np.dtype(target)})


@pytest.mark.parametrize("target", [t for t in NUMBERS if t[0] in "iu"])
@pytest.mark.parametrize("source", ["f2", "f4", "f8", bfloat16], ids=str)
def test_numbers_that_no_integer_holds_become_the_smallest(source, target):
    """And of that the low bits, where the type has less than 32."""
    held = max(np.iinfo(target).bits, 32)
    ends = [
        np.nan,
        np.inf,
        -np.inf,
        3e38,
        -3e38,
        2.0**held,
        2.0 ** (held - 1),
        -(2.0 ** (held - 1)),
        2.0**30,
        300.7,
        -1.5,
    ]
    with np.errstate(over="ignore"):
        x = np.resize(np.array(ends).astype(source), 83)
    inside = [-(2 ** (held - 1)) <= v < 2 ** (held - 1) for v in x.astype("f8")]
    whole = [int(v) if fits else -(2 ** (held - 1)) for v, fits in zip(x.astype("f8"), inside, strict=True)]
    want = np.array(whole, f"i{held // 8}").astype(target)
    for level in isa.available():
        with isa.capped(level):
            np.testing.assert_array_equal(run("cast", [x], {"dtype": np.dtype(target)}), want)


@pytest.mark.parametrize("dtype", ["?", *NUMBERS])
def test_where_broadcasts_all_three(dtype):
    check("where", [array_of((5, 1), "?"), array_of((2, 1, 4), dtype), array_of((4,), dtype, 1)])
    for size in (1, 17, 1025):
        mask = np.random.default_rng(size).random(size) > 0.5
        check("where", [mask, array_of((size,), dtype), array_of((size,), dtype, 1)])


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 3, 4, 5), (3, 1, 1)),
        ((2, 33, 7, 5), (2, 33, 1, 1)),
        ((2, 1, 7, 50), (2, 6, 7, 1)),
        ((2, 600, 3, 1), (1, 600, 1, 3)),
        ((3, 2000), (2000,)),
        ((2000, 3), (2000, 1)),
        ((), ()),
        ((40, 1, 9), (1, 30, 9)),
    ],
    ids=str,
)
def test_layouts_and_broadcasts(shapes):
    check("sub", [array_of(shape, "f4", k) for k, shape in enumerate(shapes)])


PROGRAM = (
    ("sub", (), (0, 1)),
    ("sigmoid", (), (3,)),
    ("leaky_relu", (("slope", 0.1),), (3,)),
    ("less", (), (4, 2)),
    ("where", (), (6, 5, 4)),
    ("cast", (("dtype", np.dtype(np.int32)),), (7,)),
    ("cast", (("dtype", np.dtype(np.float32)),), (8,)),
    ("mul", (), (9, 3)),
)


@pytest.mark.parametrize("shape", [(2, 9, 6, 30), (3000,), (5, 7)])
def test_programs(shape):
    arrays = [array_of(shape, "f4"), array_of(shape[-1:], "f4", 1), array_of((), "f4", 2)]
    check("elementwise", arrays, {"program": PROGRAM})


@pytest.mark.parametrize(
    ("op", "dtype", "attrs", "reason"),
    [
        ("add", "f2", {}, "add of float16"),
        ("round", "i4", {}, "round of int32"),
        ("clip", "i4", {"lo": 0.0, "hi": np.inf}, "clip of int32 without bounds"),
        ("cast", "f8", {"dtype": np.dtype("f2")}, "cast of float64 to float16"),
        ("cast", "f4", {"dtype": np.dtype("c8")}, "cast of float32 to complex64"),
    ],
)
def test_what_is_left_to_the_reference(op, dtype, attrs, reason):
    specs = [TensorSpec((3,), np.dtype(dtype))] * (2 if op == "add" else 1)
    assert elementwise.own_elementwise.usable(Problem(op, specs, specs[:1], attrs)) == reason


def test_wrong_programs_are_refused():
    step = _core.elementwise_step
    with pytest.raises(ValueError, match="no wave of float32"):
        step([4], [[4], [4]], ["float32"], [("wave", "float32", "float32", 0.0, 0.0, (0,))], 1)
    with pytest.raises(ValueError, match="no type float7"):
        step([4], [[4], [4]], ["float7"], [("add", "float7", "float7", 0.0, 0.0, (0, 0))], 1)
    with pytest.raises(ValueError, match="1 to 3 operands expected"):
        step([4], [[4], [4]], ["float32"], [("add", "float32", "float32", 0.0, 0.0, ())], 1)
    with pytest.raises(ValueError, match="too many inputs or instructions"):
        step([4], [[4]], [], [], 1)


ENDS = [0.0, -0.0, np.inf, -np.inf, np.nan, -2, 1e-40, 3e38, 1]
ROOTS = [0.25, 0.5, 0.75, -0.25, -0.5, -0.75]


@pytest.mark.parametrize("size", [9, 16, 17, 1025])
@pytest.mark.parametrize("exponents", [*([one] for one in ROOTS), [0.25, -0.5, 0.75, 0.75, 0, 2.5], [1.1] * 8 + [0.75]])
def test_powers_by_quarters_are_roots(exponents, size):
    """Near float64, with one exponent, with several in turn, and where one of them is among others."""
    rng = np.random.default_rng(size)
    x = np.concatenate([ENDS, rng.uniform(0, 9, size - len(ENDS))]).astype("f4")
    x[len(ENDS) + 3 :: 4] *= np.float32(2.0) ** rng.integers(-120, 120, x[len(ENDS) + 3 :: 4].size)
    y = np.resize(np.float32(exponents), size)
    check("pow", [x, y])
    check("pow", [x, y[:1]])
    with np.errstate(all="ignore"):
        want = np.power(x.astype("f8"), y.astype("f8")).astype("f4")
        got = get_op("pow").reference(x, y)
    roots = np.isin(y, np.float32(ROOTS))
    np.testing.assert_array_equal(got[y == 0.5], want[y == 0.5])
    np.testing.assert_array_equal(np.signbit(got[roots][:2]), np.signbit(want[roots][:2]))
    np.testing.assert_array_max_ulp(got, want, 2 if -0.75 in y else 1)


def test_powers_are_near_float64_and_have_its_special_values():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(1e-3, 40, 3000), rng.uniform(0.9, 1.1, 3000), [1e-40, 3e38]]).astype("f4")
    y = np.concatenate([rng.uniform(-9, 9, 3000), rng.uniform(-800, 800, 3000), [0.5, 0.25]]).astype("f4")
    check("pow", [x, y])
    with np.errstate(over="ignore"):
        want = np.power(x.astype("f8"), y.astype("f8")).astype("f4")
    np.testing.assert_array_max_ulp(get_op("pow").reference(x, y), want, 1)
    special = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 2.5, np.inf, -np.inf, np.nan], "f4")
    a, b = (v.ravel() for v in np.meshgrid(special, special))
    check("pow", [a, b])
    with np.errstate(all="ignore"):
        want = np.power(a, b)
    got = get_op("pow").reference(a, b)
    np.testing.assert_array_max_ulp(got, want, 1)
    numbers = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[numbers], np.signbit(want)[numbers])


LINKS = ("add", "sub", "mul", "div", "maximum", "minimum", "relu", "relu6", "clip")


def chain_of(rng, length, half):
    """A random program in a row over x, a number for each column, and an array; halves are rounded at random."""
    program, value = ([("cast", (("dtype", np.dtype("f4")),), (0,))], 3) if half else ([], 0)
    for _ in range(length):
        op = rng.choice(LINKS)
        attrs = tuple(ATTRS["clip"].items()) if op == "clip" else ()
        other = (int(rng.integers(1, 3)),) if op not in ("relu", "relu6", "clip") else ()
        turned = op != "div" and rng.integers(2)  # the sign of a zero is open, and so what it divides
        sources = (value, *other)[:: -1 if turned else 1]
        program.append((str(op), attrs, sources))
        value = 2 + len(program)
        if half and rng.integers(2):
            for dtype in (bfloat16, np.dtype("f4")):
                program.append(("cast", (("dtype", dtype),), (value,)))
                value = 2 + len(program)
    return [*program, ("cast", (("dtype", bfloat16),), (value,))] if half else program


def by_single_ops(program, arrays):
    values = list(arrays)
    for op, attrs, sources in program:
        values.append(np.asarray(get_op(op).reference(*(values[i] for i in sources), **dict(attrs))))
    return values[-1]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("cols", [1, 15, 16, 17, 130, 1100])
def test_operations_in_a_row_are_those_of_single_ops(cols, seed):
    rng = np.random.default_rng([cols, seed])
    half = seed % 2 == 1
    program = tuple(chain_of(rng, 2 + seed // 2, half))
    special = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-40, 3e38], np.float32)
    arrays = [rng.standard_normal(shape).astype(np.float32) * 4 for shape in ((5, cols), (cols,), (5, cols))]
    arrays[0].flat[: min(7, arrays[0].size)] = special[: min(7, arrays[0].size)]
    if half:
        arrays[0] = arrays[0].astype(bfloat16)
    with np.errstate(all="ignore"):
        want = by_single_ops(program, arrays).astype(np.float32)
    for level in isa.available():
        for threads in (1, 3):
            with isa.capped(level):
                got = run("elementwise", arrays, {"program": program}, threads).astype(np.float32)
            np.testing.assert_array_equal(got, want)
