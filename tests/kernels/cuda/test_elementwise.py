"""Elementwise ops on the emulated GPU: equal to the references in every bit of float32."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.core.errors import DivisionByZeroError
from megengine.dispatch import get_op
from megengine.kernels.cuda import elementwise
from megengine.kernels.cuda.elementwise import KINDS
from megengine.kernels.cuda.runtime import installed

INTEGERS = [np.dtype(t) for t in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")]
HALVES = [np.dtype(np.float16), bfloat16]
ONE = [op for op in KINDS if op not in ("where", "cast", *elementwise._TWO)]
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, 3.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.17549435e-38, 3.4e38]
EDGES += [-3.4e38, 88.7, -103.9, 0.25, -0.25, 0.75, 524288.0, 524287.97, 3.0e7, -1e20, 16777216.0, 1.5707964, 2.5, -2.5]


def bits(found, wanted) -> None:
    """Equal numbers, the signs of zeros too; NaN is NaN."""
    same(found, wanted)
    for have, want in zip(found, wanted, strict=True):
        numbers = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(have[numbers]), np.signbit(want[numbers]))


def any_floats(count: int, seed: int = 0) -> np.ndarray:
    """float32 of any bits, the edges, and numbers around zero."""
    rng = np.random.default_rng(seed)
    some = rng.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([np.array(EDGES, np.float32), some, rng.normal(0, 3, count).astype(np.float32)])


def attrs_of(op: str) -> dict:
    return dict(next(iter(get_op(op).samples())).attrs)


def matches_reference(op: str, inputs, attrs=None, **tolerances) -> None:
    with np.errstate(all="ignore"):
        wanted = by_reference(op, inputs, attrs)
    same(on_gpu(op, inputs, attrs), wanted, **tolerances)


def check_samples(op, samples) -> None:
    for sample in samples:
        matches_reference(op, [narrowed(x) for x in sample.inputs], sample.attrs)


@pytest.mark.parametrize("op", KINDS)
def test_first_samples(op):
    check_samples(op, [next(iter(get_op(op).samples()))])


@pytest.mark.slow
@pytest.mark.parametrize("op", KINDS)
def test_samples(op):
    """The others broadcast, by kernels of their own, which take long to compile."""
    check_samples(op, get_op(op).samples())


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op, kinds in KINDS.items() if "f" in kinds])
def test_float64_samples(op):
    for sample in get_op(op).samples():
        matches_reference(op, sample.inputs, sample.attrs, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("op", [op for op in ONE if "f" in KINDS[op]])
def test_any_float32_has_the_bits_of_the_reference(op):
    x = any_floats(3000)
    with np.errstate(all="ignore"):
        wanted = by_reference(op, (x,), attrs_of(op))
    found = on_gpu(op, (x,), attrs_of(op))
    (same if op in ("relu", "clip", "relu6") else bits)(found, wanted)  # NumPy has either zero as the larger one


@pytest.mark.parametrize("op", [op for op in elementwise._TWO if "f" in KINDS[op] and op != "complex"])
def test_any_pair_of_float32(op):
    x, y = (a.ravel() for a in np.meshgrid(np.array(EDGES, np.float32), np.array(EDGES, np.float32)))
    rng = np.random.default_rng(3)
    x = np.concatenate([x, rng.normal(0, 3, 500).astype(np.float32), any_floats(500, 1)])
    y = np.concatenate([y, rng.normal(0, 3, 500).astype(np.float32), any_floats(500, 2)])
    matches_reference(op, (x, y))


@pytest.mark.parametrize("exponent", [-3, -0.75, -0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 2, 3.5, np.inf, np.nan])
def test_powers(exponent):
    x = any_floats(300)
    matches_reference("pow", (x, np.full_like(x, exponent)))


SLOW_INTEGERS = [pytest.param(t, marks=pytest.mark.slow) for t in (np.int8, np.uint8, np.int64)]


@pytest.mark.parametrize("dtype", [np.int32, *SLOW_INTEGERS])
@pytest.mark.parametrize("op", [op for op, kinds in KINDS.items() if "i" in kinds and op not in ("where", "cast")])
def test_integers(op, dtype):
    rng, span = np.random.default_rng(1), np.iinfo(dtype)
    x = rng.integers(span.min, span.max, 700, dtype, endpoint=True)
    y = rng.integers(span.min, span.max, 700, dtype, endpoint=True)
    x[:4], y[:4] = span.min, [-1 if span.min else 3, 1, span.max, 2]
    y[300:] = rng.integers(-9 if span.min else 0, 9, 400)
    x[500:] = y[500:]
    if op in ("floor_div", "mod", "trunc_div"):
        y[y == 0] = 7
    attrs = (
        {"lo": -3.0 if span.min else 2.0, "hi": 60.0} if op == "clip" else {"slope": 2.0} if op == "leaky_relu" else {}
    )
    matches_reference(op, (x,) if op in ONE else (x, y), attrs)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize(
    "op", ["add", "mul", "floor_div", "mod", "left_shift", "right_shift", "less", "maximum", "neg"]
)
def test_integers_of_every_width(op, dtype):
    test_integers(op, dtype)


@pytest.mark.parametrize("op", [op for op, kinds in KINDS.items() if "b" in kinds and op not in ("where", "cast")])
def test_booleans(op):
    x, y = np.array([False, False, True, True] * 5), np.array([False, True, False, True] * 5)
    matches_reference(op, (x,) if op in ONE else (x, y))


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("op", ["add", "exp", "gelu", "where", "less", "square", "clip", "round", "relu"])
def test_halves_round_the_float32_result_once(op, dtype):
    rng = np.random.default_rng(2)
    wide = [rng.normal(0, 4, 501).astype(dtype).astype(np.float32) for _ in range(2)]
    if op == "where":
        wide = [wide[0] > 0, *wide]
    inputs = wide if op in elementwise._TWO or op == "where" else wide[:1]
    (wanted,) = by_reference(op, inputs, attrs_of(op))
    with np.errstate(over="ignore"):
        wanted = wanted if wanted.dtype == bool else wanted.astype(dtype)
    narrow = [x if x.dtype == bool else x.astype(dtype) for x in inputs]
    same(on_gpu(op, narrow, attrs_of(op)), (wanted,))


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
@pytest.mark.parametrize("op", [op for op, kinds in KINDS.items() if "c" in kinds])
def test_complex_numbers(op, dtype):
    rng = np.random.default_rng(4)
    x, y = ((rng.normal(0, 2, (5, 9)) + 1j * rng.normal(0, 2, (5, 9))).astype(dtype) for _ in range(2))
    y[0] = x[0]
    y[1, :3] = [1, 1j, 2 - 1j]
    inputs = (x.real > 0, x, y) if op == "where" else (x,) if op in ONE else (x, y[:, :1] if op == "mul" else y)
    tolerance = 4 * np.finfo(dtype).eps if op == "mul" else 0  # NumPy joins products and sums on some processors
    matches_reference(op, inputs, rtol=tolerance, atol=tolerance)


def test_bits_are_seen_as_another_dtype():
    x = any_floats(20)
    same(on_gpu("bitcast", (x.view(np.int32),), {"dtype": np.dtype(np.float32)}), (x,))


CASTS = [("f4", "i4"), ("f4", "i1"), ("f4", "u1"), ("f4", "?"), ("i4", "f4"), ("?", "f4"), ("f4", "f2"), ("f2", "f4")]
CASTS += [("f8", "f2"), ("i8", "i4"), ("f8", "f4")]
ALL = [np.dtype(t) for t in ("?", "f4", "f8")] + HALVES + INTEGERS


def cast_case(source: np.dtype, target: np.dtype) -> None:
    rng = np.random.default_rng(5)
    if source.kind in "iu":
        span = np.iinfo(source)
        x = rng.integers(span.min, span.max, 500, source, endpoint=True)
    elif source.kind == "b":
        x = rng.integers(0, 2, 50).astype(bool)
    else:
        with np.errstate(all="ignore"):
            x = np.concatenate([any_floats(300), rng.normal(0, 60, 300)]).astype(np.float64).astype(source)
            if source == np.float64:  # halfway between halves, and a little beside
                x = np.concatenate([x, 1 + 2.0**-11 + np.array([0, 2.0**-40, -(2.0**-40)]), [65519.999999999, 65520]])
        if target.kind in "iu":  # of numbers beyond its range C leaves the result open
            limit = 2.0 ** min(62, 8 * target.itemsize - 1)
            x = x[np.abs(x.astype(np.float64)) < limit]
            x = np.abs(x) if target.kind == "u" else x
    matches_reference("cast", (x,), {"dtype": target})


@pytest.mark.parametrize(("source", "target"), CASTS)
def test_casts(source, target):
    cast_case(np.dtype(source), np.dtype(target))


@pytest.mark.slow
@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("source", ALL)
def test_all_casts(source, target):
    cast_case(source, target)


def test_numbers_beyond_integers_become_the_smallest():
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -3e9, 2147483520.0, -2147483648.0], np.float32)
    (found,) = on_gpu("cast", (x,), {"dtype": np.dtype(np.int32)})
    least = -(2**31)
    np.testing.assert_array_equal(found, [least, least, least, least, least, 2147483520, least])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 15, 16, 17, 31, 33, 1023, 1025])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int8])
def test_lengths_around_a_pack(count, dtype):
    x = np.arange(count).astype(dtype)
    same(on_gpu("add", (x, x[::-1].copy())), (x + x[::-1],))


SHAPES = [
    ((3, 4), (4,)),
    ((2, 3, 4, 5), (1, 3, 1, 1)),
    ((2, 3, 4, 8), (3, 1, 1)),
    ((3, 1), (1, 17)),
    ((5, 1, 7, 1), (1, 6, 1, 8)),
    ((), (4,)),
    ((9,), ()),
    ((1, 1), (1,)),
    ((0, 3), (3,)),
    ((2, 1, 3), (2, 4, 1)),
    ((2, 3, 1, 5, 1, 7), (3, 4, 1, 6, 1)),
    ((1, 2, 1, 2, 1, 2, 1, 2, 1), (2, 1, 2, 1, 2, 1, 2, 1, 4)),
]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("op", ["sub", "less"])
def test_operands_that_broadcast(op, a, b):
    x, y = (np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate((a, b)))
    matches_reference(op, (x, y))
    matches_reference(op, (y, x))


@pytest.mark.parametrize("order", ORDERS)
def test_order_of_threads(order):
    x, y = np.arange(3000, dtype=np.float32).reshape(3, 1000), np.arange(3, dtype=np.float32)[:, None]
    same(on_gpu("mul", (x, y), gpu=EmulatedGpu(order=order)), (x * y,))
    same(on_gpu("mul", (x, x), gpu=EmulatedGpu(order=order)), (x * x,))


def test_operands_at_odd_addresses():
    gpu, x = EmulatedGpu(), np.arange(41, dtype=np.float32)
    with installed(gpu):
        whole = gpu.upload(x)
        part = type(whole)(gpu, whole.owner, whole.address + 4, (40,), whole.dtype)
        problem = problem_of("add", (x[1:], x[1:]), {})
        found = elementwise.run(problem, part, gpu.upload(x[1:]))
        np.testing.assert_array_equal(found.numpy(), x[1:] * 2)
    assert gpu.launched[-1][1] == "cuda_strided"


PROGRAM = (
    ("sub", (), (0, 1)),
    ("clip", (("lo", -0.5), ("hi", 2.0)), (2,)),
    ("exp", (), (3,)),
    ("greater", (), (4, 0)),
    ("where", (), (5, 4, 2)),
    ("cast", (("dtype", np.dtype(np.float16)),), (6,)),
)


def test_a_program_is_one_pass():
    gpu = EmulatedGpu()
    inputs = [np.random.default_rng(k).standard_normal(s).astype(np.float32) for k, s in enumerate(((2, 3, 4), (3, 1)))]
    same(
        on_gpu("elementwise", inputs, {"program": PROGRAM}, gpu=gpu),
        by_reference("elementwise", inputs, {"program": PROGRAM}),
    )
    assert [kernel for _, kernel in gpu.launched] == ["cuda_strided"]


def test_a_program_of_halves_rounds_every_value():
    x, y = (np.random.default_rng(k).normal(0, 3, 100).astype(np.float16) for k in (0, 1))
    program = (("mul", (), (0, 1)), ("add", (), (2, 0)))
    wide = (x.astype(np.float32) * y.astype(np.float32)).astype(np.float16).astype(np.float32)
    same(on_gpu("elementwise", (x, y), {"program": program}), ((wide + x.astype(np.float32)).astype(np.float16),))


def test_numbers_of_attributes_make_no_other_kernel():
    gpu, x = EmulatedGpu(), np.linspace(-3, 3, 30, dtype=np.float32)
    for bound in (0.5, 1.0, 2.0):
        attrs = {"lo": -bound, "hi": bound}
        same(on_gpu("clip", (x,), attrs, gpu=gpu), by_reference("clip", (x,), attrs))
    texts = {elementwise._launch(problem_of("clip", (x,), {"lo": -b, "hi": b}), True).program for b in (0.5, 1.0, 2.0)}
    assert len(texts) == 1


@pytest.mark.parametrize("op", ["floor_div", "mod", "trunc_div"])
def test_division_by_zero_is_refused(op):
    x = np.array([5, 6, 7], np.int32)
    with pytest.raises(DivisionByZeroError, match=f"{op}: integer division by zero; expected a divisor without zeros"):
        on_gpu(op, (x, np.array([1, 0, 2], np.int32)))


def test_reasons():
    x = np.zeros(3, np.int32)
    assert elementwise.usable(problem_of("exp", (x,), {})) == "exp of int32"
    assert elementwise.usable(problem_of("clip", (x,), {"lo": 0.0, "hi": np.inf})) == "clip of int32 without bounds"


def test_collapsed_axes():
    assert elementwise.collapsed((2, 3, 4), [(2, 3, 4), (2, 3, 4)]) == ([24], [[1], [1]])
    assert elementwise.collapsed((2, 3, 4), [(2, 3, 4), ()]) == ([24], [[1], [0]])
    assert elementwise.collapsed((2, 3, 4, 5), [(2, 3, 4, 5), (3, 1, 1)]) == ([2, 3, 20], [[60, 20, 1], [0, 1, 0]])
    assert elementwise.collapsed((1, 1), [(1,)]) == ([], [[]])
