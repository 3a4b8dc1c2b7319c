"""Recurrent layers: the bits of the reference at every instruction set, in eager calls and plans."""

import numpy as np
import pytest

from megengine.core.dtype import bfloat16, qint8, quantized, quint8, storage_of
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply, get_op, infer
from megengine.kernels import _core, isa, memory, recurrent
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.ops.recurrent import recurrent_attrs
from megengine.tensor import Tensor, tensor

GATES = {"rnn": 1, "gru": 3, "lstm": 4}
# time, batch, input, hidden: around the width of panels, and many rows; the last is computed in pieces of its time
SIZES = [(1, 1, 1, 1), (3, 1, 5, 15), (4, 1, 7, 64), (5, 7, 3, 17), (3, 20, 9, 33), (40, 9, 4, 70)]


def case(cell, size, direction="bidirectional", **attrs):
    t, n, features, hidden = size
    d, gates = (2 if direction == "bidirectional" else 1), GATES[cell] * hidden
    rng = np.random.default_rng([*size, gates])
    given = ["bias", "lengths", "h", *(["c", "peepholes"] if cell == "lstm" else [])]
    shapes = {"bias": (d, 2 * gates), "h": (d, n, hidden), "c": (d, n, hidden), "peepholes": (d, 3 * hidden)}
    arrays = [rng.uniform(-0.2, 0.2, s) for s in ((t, n, features), (d, gates, features), (d, gates, hidden))]
    arrays += [rng.integers(0, t + 1, n) if g == "lengths" else rng.uniform(-1, 1, shapes[g]) for g in given]
    return [a.astype(np.int32 if a.dtype.kind == "i" else np.float32) for a in arrays], recurrent_attrs(
        cell, direction, given, **attrs
    )


def problem_of(arrays, attrs, op="recurrent"):
    """As a plan asks, and its constant weights."""
    lifted = [a[None] if a.ndim == 3 else a for a in arrays]
    specs = infer(op, [TensorSpec(a.shape, a.dtype) for a in arrays], attrs)
    outs = [TensorSpec((1, *s.shape), s.dtype) for s in specs]
    problem = Problem(op, [TensorSpec(a.shape, a.dtype) for a in lifted], outs, attrs)
    return problem, {1: lifted[1], 2: lifted[2]}


def in_a_plan(arrays, attrs, threads, op="recurrent"):
    """The step, with numbers behind each result that must stay."""
    problem, constants = problem_of(arrays, attrs, op)
    specs = infer(op, [TensorSpec(a.shape, a.dtype) for a in arrays], attrs)
    (kernel,) = family(op).for_plan(problem, constants)
    buffers = [np.full(s.size + 32, 77, storage_of(s.dtype)) for s in specs]
    step = kernel.make_step(problem, constants, threads)
    moving = [np.ascontiguousarray(a) for i, a in enumerate(arrays) if i not in (1, 2)]
    _core.run_step(step, [*map(memory.bits, moving), *(memory.bits(b[:-32]) for b in buffers)])
    assert all((b[-32:] == 77).all() for b in buffers)
    return [b[:-32].reshape(s.shape) for b, s in zip(buffers, specs, strict=True)]


each_layer = pytest.mark.parametrize(
    ("cell", "attrs"),
    [
        ("lstm", {}),
        ("lstm", {"clip": 0.3, "input_forget": True}),
        ("gru", {}),
        ("gru", {"linear_before_reset": True}),
        ("rnn", {}),
    ],
)


def check_every_level(arrays, attrs):
    """The bits of the reference in eager calls, and in plans for one thread and for several."""
    wanted = get_op("recurrent").reference(*arrays, **attrs)
    for level in isa.available():
        with isa.capped(level):
            for result in ([y.numpy() for y in apply("recurrent", *map(tensor, arrays), **attrs)],
                           *(in_a_plan(arrays, attrs, threads) for threads in (1, 5))):  # fmt: skip
                for a, b in zip(result, wanted, strict=True):
                    np.testing.assert_array_equal(a, b)
    return wanted


def rounded(arrays):
    return [a.astype(bfloat16) if a.dtype == np.float32 else a for a in arrays]


@pytest.mark.skipif(not isa.has("amx"), reason="products of bfloat16 rows run in tiles of AMX")
@pytest.mark.parametrize("size", [*SIZES, (2, 1, 31, 16), (3, 11, 32, 8), (33, 1, 33, 24), (1, 2, 64, 40)])
@each_layer
def test_bfloat16_rounds_results_alone(cell, attrs, size):
    arrays, attrs = case(cell, size, **attrs)
    halves = rounded(arrays)
    exact = [a.astype(np.float64) if a.dtype == bfloat16 else a for a in halves]
    wanted = get_op("recurrent").reference(*exact, **attrs)
    for threads in (1, 5):
        for got, want in zip(in_a_plan(halves, attrs, threads), wanted, strict=True):
            assert got.dtype == bfloat16
            np.testing.assert_allclose(got.astype(np.float64), want, rtol=2**-8, atol=1e-5)
    with isa.capped("bf16"):  # computed between casts instead
        assert not family("recurrent").for_plan(*problem_of(halves, attrs))


def test_when_bfloat16_is_taken_as_it_is():
    arrays, attrs = case("gru", (2, 1, 3, 4))
    why_not = recurrent.own_recurrent_halves.usable
    assert why_not(problem_of(arrays, attrs)[0]) == "bfloat16 only, got float32"
    halves = rounded(arrays)
    attrs["state"] = quint8(1 / 200, 101)
    assert why_not(problem_of(halves, attrs)[0]) == "the state is rounded to integers"
    attrs["state"] = None
    with isa.capped("bf16" if isa.has("amx") else str(isa.active())):
        assert "needs AMX" in str(why_not(problem_of(halves, attrs)[0]))
    layer = _core.RecurrentLayer("gru", [False] * 5, False, ["Sigmoid", "Tanh"], [0, 0], [0, 0], 1, False, False)
    with isa.capped("base"), pytest.raises(ValueError, match="halves_recurrent_step: needs AMX"):
        w, r = np.zeros((1, 12, 3), np.uint16), np.zeros((1, 12, 4), np.float32)
        _core.halves_recurrent_step(layer, [2, 1, 3, 4], w, r, 1)


@pytest.mark.skipif(not isa.has("amx"), reason="products of bfloat16 rows run in tiles of AMX")
def test_what_is_not_finite_stays_with_its_sample_in_bfloat16():
    arrays, attrs = case("gru", (3, 40, 33, 17), "forward")
    halves = rounded(arrays)
    (wanted, last) = in_a_plan(halves, attrs, 1)
    halves[0][1, 18, 32] = np.nan
    got, ends = in_a_plan(halves, attrs, 1)
    others = np.arange(40) != 18
    np.testing.assert_array_equal(got[:, :, others], wanted[:, :, others])
    np.testing.assert_array_equal(ends[:, others], last[:, others])


@pytest.mark.parametrize("size", SIZES)
@each_layer
def test_every_level_gives_the_bits_of_the_reference(cell, attrs, size):
    arrays, attrs = case(cell, size, **attrs)
    got = check_every_level(arrays, attrs)
    wide = [a.astype(np.float64) if a.dtype == np.float32 else a for a in arrays]
    for one, want in zip(got, get_op("recurrent").reference(*wide, **attrs), strict=True):
        np.testing.assert_allclose(one, want, rtol=1e-4, atol=1e-5)


# one panel, a pair, pairs and one more; samples up to four, and more of them
@pytest.mark.parametrize("size", [(3, 1, 5, 3), (3, 1, 5, 8), (4, 1, 7, 40), (4, 4, 3, 21), (3, 5, 3, 21)])
@each_layer
def test_weights_that_are_bfloat16_numbers_give_the_same_bits(cell, attrs, size):
    """Of few samples they are packed as such."""
    arrays, attrs = case(cell, size, **attrs)
    for i in (1, 2):
        arrays[i] = arrays[i].astype(bfloat16).astype(np.float32)
    check_every_level(arrays, attrs)


def integer_case(cell, size, dtype, direction="bidirectional", **attrs):
    t, n, _, hidden = size
    arrays, attrs = case(cell, size, direction, **attrs)
    given = dict(zip(attrs.pop("given"), arrays[3:], strict=True))
    del attrs["state"]
    d, rows = (2 if direction == "bidirectional" else 1), len(arrays[2]) * arrays[2].shape[1]
    rng = np.random.default_rng([*size, rows])
    given["bias"] = rng.normal(size=(d, hidden)).astype(np.float32)
    sums, r = rng.normal(size=(t, n, rows)).astype(np.float32), rng.integers(-128, 128, (rows, hidden)).astype(np.int8)
    factors = (rng.random(rows) / 3000 + 1e-5).astype(np.float32)
    return [sums, r, factors, *given.values()], {**attrs, "given": tuple(given), "dtype": dtype}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [quint8(1 / 200, 101), qint8(1 / 128)], ids=["u8", "s8"])
@each_layer
def test_every_level_multiplies_integers_of_the_state(cell, attrs, dtype, size):
    arrays, attrs = integer_case(cell, size, dtype, **attrs)
    wanted = get_op("qrecurrent").reference(*arrays, **attrs)
    results = []
    for level in isa.available():
        with isa.capped(level):
            results.append([y._storage() for y in apply("qrecurrent", *(Tensor._wrap(a) for a in arrays), **attrs)])
            results += [in_a_plan(arrays, attrs, threads, "qrecurrent") for threads in (1, 5)]
    for result in results:
        for a, b in zip(result, wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cell", GATES)
def test_float_products_of_a_rounded_state(cell):
    arrays, attrs = case(cell, (5, 7, 3, 17), state=quint8(1 / 200, 101))
    wanted = check_every_level(arrays, attrs)
    plain = get_op("recurrent").reference(*arrays, **{**attrs, "state": None})
    assert np.abs(wanted[0] - plain[0]).max() > 1e-4


def test_when_the_integer_step_is_chosen():
    arrays, attrs = integer_case("gru", (2, 1, 3, 4), quantized("qint16", 1 / 30000))
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem("qrecurrent", specs, infer("qrecurrent", specs, attrs), attrs)
    assert "more than 8 bits" in dict(family("qrecurrent").explain(problem))["int8_recurrent"]
    for wrong in ([1, 1, 1], [2, 1, 6, 3]):
        with pytest.raises(ValueError, match="integer_recurrent_step: weights of other sizes|4 lengths"):
            layer = _core.RecurrentLayer(
                "gru", [False] * 5, False, ["Sigmoid", "Tanh"], [0, 0], [0, 0], 1, False, False
            )
            _core.integer_recurrent_step(layer, wrong, 1, arrays[1], arrays[2], (1.0, -128, 127, 0, True), 1)


def test_when_it_is_chosen():
    arrays, attrs = case("gru", (2, 1, 3, 4))
    specs = [TensorSpec(a.shape, a.dtype) for a in arrays]
    problem = Problem("recurrent", specs, infer("recurrent", specs, attrs), attrs)
    reasons = dict(family("recurrent").explain(problem, step=True))
    assert reasons["own_recurrent_rows"] == "the results of 4 axes lie channels-last"
    assert dict(family("recurrent").explain(problem))["own_recurrent"] == "usable"
