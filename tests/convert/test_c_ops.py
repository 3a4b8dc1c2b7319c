"""Single ops in C, of odd shapes and on extreme numbers, and the arithmetic in integers that they share."""

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from megengine.convert.c.helpers import HELPERS, in_order
from megengine.convert.c.writing import FLOAT_RULES, RULES
from megengine.core.dtype import qint8, quantized, quint8
from megengine.dispatch import registry
from megengine.tensor import Tensor
from tests.helpers.c_file import Calls, compiled, needs_gcc, pointer, stored

pytestmark = needs_gcc
F32 = np.dtype(np.float32)


def samples(op, *, real):
    for sample in registry[op].samples():
        values = [
            v.astype(np.float32) if isinstance(v, np.ndarray) and v.dtype == np.float64 else v for v in sample.inputs
        ]
        if (np.asarray(values[0]).dtype == np.float32 if isinstance(values[0], np.ndarray) else False) == real:
            yield values, sample.attrs


MOVES = {"index", "set_index", "transpose", "slice", "broadcast_to", "split", "concat", "pad", "where"}
WHOLE = sorted({*RULES} - {"quantize", "cast", *MOVES})


@pytest.mark.parametrize("first", range(3))
def test_samples_of_every_op_on_integers(tmp_path, first):
    calls, seen = Calls(), set()
    for op in WHOLE[first::3]:
        for values, attrs in samples(op, real=op == "quantize"):
            calls.add(op, values, attrs)
            seen.add(op)
    assert seen >= {op for op in WHOLE[first::3] if op.startswith("q") or op in ("dequantize", "requantize")}
    calls.check(tmp_path)


def test_samples_of_every_op_on_floats(tmp_path):
    calls, seen = Calls(), set()
    ops = ["quantize", *sorted(MOVES), *FLOAT_RULES]
    for op in ops:
        for values, attrs in samples(op, real=op != "where"):
            if op == "pad" and attrs["value"]:
                attrs = {**attrs, "value": 0}
            calls.add(op, values, attrs)
            seen.add(op)
    assert seen == {*ops}
    calls.check(tmp_path)


TYPES = [quint8(0.02, 13), qint8(0.03, -5), quint8(0.01), quantized("qint16", 0.001)]
lengths = st.integers(1, 9)
pads = st.tuples(st.integers(0, 3), st.integers(0, 2))


@st.composite
def convolutions(draw):
    groups, each, outs = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 3))
    kernel, dilation = (draw(st.tuples(st.integers(1, 4), st.integers(1, n))) for n in (4, 3))
    padding = draw(pads), draw(pads)
    least = [max(1, d * (k - 1) + 1 - sum(p)) for k, d, p in zip(kernel, dilation, padding, strict=True)]
    size = [n + draw(st.sampled_from([0, 1, 5, 70])) for n in least[:1]] + [least[1] + draw(st.integers(0, 70))]
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    x = stored(draw(st.sampled_from(TYPES)), draw(st.integers(1, 2)), groups * each, *size)
    o = groups * outs
    bits = draw(st.sampled_from([7, 127]))
    w = rng.integers(-bits - 1, bits + 1, (o, each, *kernel)).astype(np.int8)
    weights = Tensor._wrap(w, quantized("qint4" if bits == 7 else "qint8", 1.0))
    M = (rng.random(o) * 2.0 ** rng.integers(-20, 3, o)).astype(np.float32)
    B = (rng.normal(0, 50, o) * rng.integers(0, 2)).astype(np.float32)
    dtype = draw(st.sampled_from(TYPES))
    ends = sorted(draw(st.tuples(*[st.integers(dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point)] * 2)))
    attrs = {"stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))), "padding": padding, "dilation": dilation}
    attrs |= {"groups": groups, "lo": ends[0], "hi": ends[1], "ratio": 0.0, "dtype": dtype}
    if draw(st.booleans()):
        attrs |= {"dtype": "float32", "lo": 0, "hi": 0}
    return [x, weights, rng.integers(-3000, 3000, o).astype(np.int32), M, B], attrs


@settings(max_examples=2, phases=[Phase.generate])  # each is compiled
@given(st.lists(convolutions(), min_size=10, max_size=16))
def test_convolutions_of_odd_shapes(tmp_path_factory, problems):
    calls = Calls()
    for values, attrs in problems:
        nodes = [calls.operand(values[0], fixed=False), *(calls.operand(v, fixed=True) for v in values[1:])]
        calls.outputs.append(calls.graph.apply("qconv2d", *nodes, attrs=attrs))
    calls.check(tmp_path_factory.mktemp("c"))


@st.composite
def pairs(draw):
    """Operands that broadcast."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    shapes = [
        [1 if draw(st.booleans()) and draw(st.booleans()) else n for n in shape][draw(st.integers(0, 1)) :]
        for _ in "ab"
    ]
    a, b, y = (draw(st.sampled_from(TYPES)) for _ in range(3))
    op = draw(st.sampled_from(["qadd", "qmul", "qmaximum", "qminimum"]))
    ends = {"lo": y.qmin - y.zero_point, "hi": y.qmax - y.zero_point, "dtype": y}
    factor = float(np.float32(draw(st.sampled_from([0.001, 0.3, 1.0, 70.0]))))
    ratios = [draw(st.integers(1, 65535)) * 2.0 ** draw(st.integers(-26, -12)) for _ in "ab"]
    attrs = {"m": factor} if op == "qmul" else {"ra": ratios[0], "rb": -ratios[1]}
    return op, [stored(a, *shapes[0]), stored(b, *shapes[1])], {**attrs, **ends}


@settings(max_examples=2, phases=[Phase.generate])  # each is compiled
@given(st.lists(pairs(), min_size=15, max_size=30))
def test_pairs_of_odd_shapes(tmp_path_factory, problems):
    calls = Calls()
    for problem in problems:
        calls.add(*problem)
    calls.check(tmp_path_factory.mktemp("c"))


def test_rows_of_odd_lengths(tmp_path):
    """Softmax and normalization whose sums need all of 64 bits of float64 and more."""
    calls, rng = Calls(), np.random.default_rng(0)
    for n in (1, 2, 3, 7, 100, 1000):
        for x in TYPES:
            numbers = (rng.random(n) * 40).astype(np.float32), rng.normal(0, 20, n).astype(np.float32)
            for E, centred in ((1e-12, True), (0.3, False), (1e20, True)):
                calls.add(
                    "qnorm", (stored(x, 3, n), *numbers), {"axes": 1, "E": E, "centred": centred, "dtype": TYPES[0]}
                )
    calls.check(tmp_path)


# ---------------------------------------------------------------- the arithmetic

_WRAPPERS = """
static void t_write(t_f32 *y, int32_t i, t_real a) { t_store(y + i, a); }
void t_pairs(const uint32_t *a, const uint32_t *b, t_f32 *sum, t_f32 *product, t_f32 *quotient, int32_t *whole,
             int32_t n)
{
    int32_t i;
    for (i = 0; i < n; ++i) {
        t_real x = t_of_bits(a[i]), y = t_of_bits(b[i]);
        t_write(sum, i, t_add(x, y));
        t_write(product, i, t_mul(x, y));
        if (y.m)
            t_write(quotient, i, t_div(x, y));
        whole[i] = t_nearest(x, -30000, 30000);
    }
}
void t_roots(const uint64_t *a, const uint64_t *b, uint64_t *q, uint64_t *r, int32_t *es, int32_t n)
{
    int32_t i;
    for (i = 0; i < n; ++i) {
        t_wide x = t_widened(a[i], 0, 0), y = t_widened(b[i], 0, 0);
        t_wide s = t_wide_div(x, y), t = t_wide_sqrt(t_wide_add(s, y));
        q[i] = s.m;
        r[i] = t.m;
        es[2 * i] = s.e;
        es[2 * i + 1] = t.e;
    }
}
"""


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    text = "".join(
        HELPERS[n].text
        for n in in_order({"add", "mul", "div", "nearest", "store", "of_bits", "wide_add", "wide_div", "wide_sqrt"})
    )
    head = "#include <stdint.h>\n#include <string.h>\ntypedef float t_f32;\n"
    return compiled(tmp_path_factory.mktemp("c"), head + text.replace("${p}", "t_") + _WRAPPERS, "-O2")


def test_arithmetic_in_integers_is_that_of_float32(arithmetic):
    """Sums, products, quotients and nearest integers of numbers of every size, the subnormal ones and ties included."""
    rng = np.random.default_rng(0)
    n = 200_000
    a = rng.integers(0, 2**32, n, dtype=np.uint32)
    b = rng.integers(0, 2**32, n, dtype=np.uint32)
    near = a[: n // 2] + rng.integers(-3, 4, n // 2).astype(np.uint32)  # sums that cancel
    b[: n // 2] = near ^ np.where(rng.random(n // 2) < 0.5, np.uint32(1 << 31), np.uint32(0))
    b[: n // 4] = (b[: n // 4] & 0x807FFFFF) | (
        (a[: n // 4] + rng.integers(-40, 40, n // 4).astype(np.uint32) * 0x800000) & 0x7F800000
    )
    small = rng.integers(-(2**17), 2**17, n // 8)
    a[-len(small) :] = (small / np.float32(4)).astype(np.float32).view(np.uint32)
    for bits in (a, b):
        bits[(bits & 0x7F800000) == 0x7F800000] &= 0x807FFFFF  # no infinity, no NaN
    x, y = a.view(np.float32), b.view(np.float32)
    sums, products, quotients, whole = (np.zeros(n, t) for t in (F32, F32, F32, np.int32))
    arithmetic.t_pairs(*map(pointer, (a, b, sums, products, quotients, whole)), n)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(sums, x + y)
        np.testing.assert_array_equal(products, x * y)
        np.testing.assert_array_equal(quotients[y != 0], (x / y)[y != 0])
    np.testing.assert_array_equal(whole, np.rint(np.clip(x, -30000, 30000)).astype(np.int32))
    assert len(np.unique(whole)) > 1000 and (np.abs(products) < 1e-38).sum() > 1000


def test_arithmetic_in_integers_is_that_of_float64(arithmetic):
    rng = np.random.default_rng(0)
    n = 50_000
    a, b = (rng.integers(1, 2**62, n).astype(np.uint64) >> rng.integers(0, 60, n).astype(np.uint64) for _ in "ab")
    a, b = np.maximum(a, 1), np.maximum(b, 1)
    quotients, roots, exponents = np.zeros(n, np.uint64), np.zeros(n, np.uint64), np.zeros((n, 2), np.int32)
    arithmetic.t_roots(*map(pointer, (a, b, quotients, roots, exponents)), n)
    x, y = a.astype(np.float64), b.astype(np.float64)
    np.testing.assert_array_equal(np.ldexp(quotients.astype(np.float64), exponents[:, 0]), x / y)
    np.testing.assert_array_equal(np.ldexp(roots.astype(np.float64), exponents[:, 1]), np.sqrt(x / y + y))
