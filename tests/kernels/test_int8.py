"""Own 8-bit kernels against the executable specification: zero mismatches at every instruction set of this machine."""

import functools
import hashlib

import numpy as np
import pytest

import megengine.functional  # noqa: F401
from megengine.core.dtype import QuantizedDType, qint8, quint8
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer, reference_runner
from megengine.kernels import _core, int8, isa
from megengine.kernels.kernel import StepKernel
from megengine.kernels.problem import Problem
from megengine.kernels.reference import integer
from megengine.kernels.reference.integer import Output, f32
from megengine.kernels.registry import family

LEVELS = isa.available()
KINDS = {"u8": quint8(0.02), "u8z": quint8(0.02, 13), "s8": qint8(0.03), "s8z": qint8(0.03, -5)}
GUARD = 64


@pytest.fixture(params=LEVELS)
def level(request):
    with isa.capped(request.param):
        yield request.param


def values(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    if isinstance(dtype, QuantizedDType):
        return rng.integers(dtype.qmin, dtype.qmax + 1, shape).astype(dtype.storage)
    return rng.normal(0, 3, shape).astype(np.float32)


def channels(o, depth, seed):
    rng = np.random.default_rng(seed)
    M = (rng.random(o) + 0.5).astype(f32) / f32(75 * np.sqrt(depth))
    return [rng.integers(-900, 900, o).astype(np.int32), M, rng.normal(0, 20, o).astype(f32)]


def problem_of(op, specs, attrs):
    outputs = infer(op, specs, attrs)
    return Problem(op, specs, [outputs], attrs)


def nhwc(array):
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if array.ndim == 4 else array)


def run_step(kernel, problem, arrays, constants, threads):
    """The step's output as NCHW, with canaries around it; every part runs alone."""
    step = kernel.make_step(problem, {i: arrays[i] for i in constants}, threads)
    spec = problem.outputs[0]
    storage = spec.dtype.storage if isinstance(spec.dtype, QuantizedDType) else spec.dtype
    shape = tuple(spec.shape[i] for i in (0, 2, 3, 1)) if spec.ndim == 4 else spec.shape
    size = int(np.prod(shape)) * storage.itemsize
    memory = np.full(size + 2 * GUARD, 0xA5, np.uint8)
    out = memory[GUARD : GUARD + size].view(storage).reshape(shape)
    _core.run_step(step, [*[nhwc(a) for i, a in enumerate(arrays) if i not in constants], out])
    assert (memory[:GUARD] == 0xA5).all(), "written before the output"
    assert (memory[-GUARD:] == 0xA5).all(), "written behind the output"
    return out.transpose(0, 3, 1, 2) if spec.ndim == 4 else out


def check(op, arrays, dtypes, attrs, *, name, constants=(), threads=(1, 3)):
    specs = [TensorSpec(a.shape, d) for a, d in zip(arrays, dtypes, strict=True)]
    problem = problem_of(op, specs, attrs)
    kernel = next(k for k in family(op).kernels if k.name == name)
    assert kernel.usable(problem) is None
    want = reference_runner(get_op(op), problem, True)(*arrays)
    got = kernel.run(problem, *arrays)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    assert np.array_equal(got, want), f"{(got != want).sum()} of {want.size} differ"
    for count in threads if isinstance(kernel, StepKernel) else ():
        np.testing.assert_array_equal(run_step(kernel, problem, arrays, constants, count), want)


def place(stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


ONE = ((1, 1), (1, 1))
TWO = ((2, 2), (2, 2))
CONVS = {
    "1x1": ((2, 16, 5, 5), (24, 16, 1, 1), place()),
    "1x1-tails": ((1, 37, 7, 3), (51, 37, 1, 1), place()),
    "1x1-stride": ((1, 32, 7, 7), (130, 32, 1, 1), place((2, 2))),
    "1x1-one-pixel": ((1, 300, 1, 1), (70, 300, 1, 1), place()),
    "1x1-padded": ((1, 8, 4, 4), (9, 8, 1, 1), place((1, 1), ONE)),
    "3x3": ((1, 16, 9, 8), (20, 16, 3, 3), place(padding=ONE)),
    "3x3-uneven": ((2, 5, 8, 9), (17, 5, 3, 2), place((2, 1), ((0, 1), (1, 0)))),
    "3x3-dilated": ((1, 8, 11, 9), (33, 8, 3, 3), place(padding=TWO, dilation=(2, 2))),
    "7x7-stem": ((1, 3, 20, 21), (64, 3, 7, 7), place((2, 2), ((3, 3), (3, 3)))),
    "grouped": ((1, 12, 6, 7), (18, 4, 3, 3), place(padding=ONE, groups=3)),
    "grouped-wide": ((1, 16, 5, 5), (200, 8, 1, 1), place(groups=2)),
    "multiplier": ((1, 6, 7, 7), (12, 1, 3, 3), place(padding=ONE, groups=6)),
    "many groups of few": ((2, 64, 5, 6), (64, 4, 3, 3), place(padding=ONE, groups=16)),
    "groups of one result": ((1, 36, 5, 6), (12, 3, 3, 3), place(padding=ONE, groups=12)),
    "groups without a common divisor": ((1, 14, 5, 6), (35, 2, 1, 3), place((1, 2), ONE, (2, 1), groups=7)),
    "deep": ((1, 700, 3, 3), (16, 700, 3, 3), place(padding=ONE)),
    "full-blocks": ((1, 6, 7, 7), (192, 6, 3, 3), place(padding=ONE)),
    "full-blocks-even": ((1, 16, 5, 7), (128, 16, 3, 3), place(padding=ONE)),
    "several-chunks": ((2, 64, 26, 45), (24, 64, 3, 3), place(padding=ONE)),
    "1x1-strides-differ": ((2, 12, 7, 9), (20, 12, 1, 1), place((3, 2), ((1, 0), (2, 1)))),
}
DEPTHWISE = {
    "3x3": ((1, 64, 9, 9), 3, place(padding=ONE)),
    "3x3-one-channel": ((2, 1, 5, 6), 3, place(padding=ONE)),
    "3x3-tail": ((2, 35, 7, 31), 3, place(padding=ONE)),
    "3x3-two-blocks": ((1, 80, 6, 60), 3, place(padding=ONE)),
    "3x3-stride": ((1, 70, 11, 10), 3, place((2, 2), ONE)),
    "3x3-stride-uneven": ((1, 16, 8, 8), 3, place((2, 2), ((0, 1), (0, 1)))),
    "3x3-no-padding": ((1, 16, 6, 6), 3, place()),
    "5x5": ((1, 40, 9, 33), 5, place(padding=TWO)),
    "5x5-stride": ((2, 65, 11, 9), 5, place((2, 2), TWO)),
    "5x5-half-block": ((1, 24, 6, 30), 5, place(padding=TWO)),
    "7x7": ((1, 20, 9, 9), 7, place(padding=((3, 3), (3, 3)))),
    "7x7-stride": ((2, 13, 9, 61), 7, place((2, 2), ((3, 3), (3, 3)))),
    "dilated": ((1, 20, 9, 9), 3, place(padding=TWO, dilation=(2, 2))),
    "stride-mixed": ((1, 20, 9, 9), 3, place((2, 1), ONE)),
}


def check_conv(x, w, geometry, kind, out, *, name, residual=None, op="qconv2d", margin=3, weights=None, source=None):
    dtype = KINDS.get(out, out)
    x_type = KINDS[kind]
    depth = int(np.prod(w[1:]))
    lo, hi = (0, 0) if out == "float32" else (dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point - margin)
    attrs = {**geometry, "lo": lo, "hi": hi, "ratio": 0.0, "dtype": dtype}
    if weights is None:
        weights = np.random.default_rng(7).integers(-128, 128, w).astype(np.int8)
    arrays = [values(x_type, x, 1) if source is None else source, weights, *channels(w[0], depth, 3)]
    dtypes = [x_type, *[a.dtype for a in arrays[1:]]]
    if residual:
        attrs["ratio"] = float(integer.cut16(0.7123))
        specs = [TensorSpec(a.shape, d) for a, d in zip(arrays, dtypes, strict=True)]
        arrays.append(values(KINDS[residual], infer(op, specs, attrs).shape, 9))
        dtypes.append(KINDS[residual])
    check(op, arrays, dtypes, attrs, name=name, constants=(1, 2, 3, 4))


VARIANTS = [("u8", "u8z", None), ("s8z", "s8", "u8z"), ("u8z", "s8z", "s8z"), ("s8", "u8", None)]


@pytest.mark.parametrize("case", CONVS)
@pytest.mark.parametrize(("kind", "out", "residual"), [*VARIANTS, ("u8z", "float32", None)])
def test_convolution(level, case, kind, out, residual):
    check_conv(*CONVS[case], kind, out, name="int8_conv", residual=residual)


@pytest.mark.parametrize(
    "case", ["1x1", "1x1-tails", "7x7-stem", "3x3-uneven", "3x3-dilated", "grouped", "full-blocks-even"]
)
@pytest.mark.parametrize("pair", [(64, -64), (64, 64), (127, 1), (0, -128), (64, 65), (2, 127)])
def test_weights_at_the_limit_of_products_in_pairs(level, case, pair):
    """Two neighbouring products with 255 reach the ends of 16 bits, or pass them."""
    shape = CONVS[case][1]
    weights = np.resize(np.array(pair, np.int8), shape[1])[:, None, None]
    weights = weights * np.random.default_rng(3).choice([-1, 1], (shape[0], 1, *shape[2:]))
    weights = np.ascontiguousarray(np.broadcast_to(weights, shape).clip(-128, 127).astype(np.int8))
    source = values(KINDS["u8"], CONVS[case][0], 1) // 128 * 255
    check_conv(*CONVS[case], "u8", "float32", name="int8_conv", weights=weights, source=source)


@pytest.mark.parametrize("outputs", [15, 17, 37, 64, 70])
@pytest.mark.parametrize("out", KINDS)
@pytest.mark.parametrize("residual", [None, *KINDS])
def test_clamps_of_the_whole_range(level, outputs, out, residual):
    case = ((1, 16, 5, 5), (outputs, 16, 3, 3), place(padding=ONE))
    check_conv(*case, "u8z", out, name="int8_conv", residual=residual, margin=0)


@pytest.mark.parametrize("case", DEPTHWISE)
@pytest.mark.parametrize(("kind", "out", "residual"), [*VARIANTS, ("u8z", "float32", None), ("s8", "float32", None)])
def test_depthwise(level, case, kind, out, residual):
    x, k, geometry = DEPTHWISE[case]
    geometry = {**geometry, "groups": x[1]}
    check_conv(x, (x[1], 1, k, k), geometry, kind, out, name="int8_depthwise", residual=residual)


@pytest.mark.parametrize("case", ["3x3-tail", "7x7", "dilated"])
@pytest.mark.parametrize("out", KINDS)
def test_depthwise_clamps_of_the_whole_range(level, case, out):
    x, k, geometry = DEPTHWISE[case]
    geometry = {**geometry, "groups": x[1]}
    check_conv(x, (x[1], 1, k, k), geometry, "s8z", out, name="int8_depthwise", margin=0)


@pytest.mark.parametrize("rows", [*range(1, 9), 11, 12, 13, 25])
@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 63, 64, 65, 130])
def test_linear_tails(level, rows, outputs):
    check_conv((rows, 20), (outputs, 20), {}, "u8z", "s8", name="int8_linear", residual="u8", op="qlinear")


def test_linear_logits(level):
    check_conv((2, 3, 65), (10, 65), {}, "s8z", "float32", name="int8_linear", op="qlinear")


@pytest.mark.parametrize("shape", [(1,), (15,), (4, 33), (2, 3, 7, 5), (1, 8, 40, 40)])
@pytest.mark.parametrize(("a", "r", "out"), [("u8", "s8z", "u8z"), ("s8", "u8z", "s8z"), ("s8z", "u8", "u8")])
def test_add_and_requantize(level, shape, a, r, out):
    dtype = KINDS[out]
    lo, hi = dtype.qmin - dtype.zero_point + 1, dtype.qmax - dtype.zero_point
    ra, rb = float(integer.cut16(0.61)), float(integer.cut16(1.37))
    arrays = [values(KINDS[a], shape, 1), values(KINDS[r], shape, 2)]
    attrs = {"ra": ra, "rb": rb, "lo": lo, "hi": hi, "dtype": dtype}
    check("qadd", arrays, [KINDS[a], KINDS[r]], attrs, name="int8_add")
    attrs = {"ratio": ra, "lo": lo, "hi": hi, "dtype": dtype}
    check("requantize", arrays[:1], [KINDS[a]], attrs, name="int8_requantize")


@pytest.mark.parametrize(("a", "r", "out"), [("u8", "u8", "u8z"), ("s8z", "u8z", "s8"), ("u8z", "s8", "u8")])
@pytest.mark.parametrize(
    "shapes",
    [((1,), (1,)), ((4, 33), (4, 33)), ((2, 3, 7, 5), (2, 3, 7, 5))],
    ids=str,
)
def test_multiply(level, shapes, a, r, out):
    check_multiply(shapes, (a, r), out, "int8_multiply")


@pytest.mark.parametrize(("a", "r", "out"), [("u8", "u8", "u8z"), ("s8z", "u8z", "s8"), ("u8z", "s8", "u8")])
@pytest.mark.parametrize("channels", [1, 4, 15, 16, 17, 72])
@pytest.mark.parametrize("gate_first", [False, True])
def test_gate(level, channels, a, r, out, gate_first):
    shapes = [(2, channels, 9, 8), (2, channels, 1, 1)]
    check_multiply(shapes[::-1] if gate_first else shapes, (a, r), out, "int8_gate")


def check_multiply(shapes, kinds, out, name):
    dtypes = [KINDS[k] for k in kinds]
    m = float(integer.multiplier(dtypes[0].scale, dtypes[1].scale, KINDS[out].scale))
    lo, hi = KINDS[out].qmin - KINDS[out].zero_point, KINDS[out].qmax - KINDS[out].zero_point - 9
    arrays = [values(d, s, i) for i, (d, s) in enumerate(zip(dtypes, shapes, strict=True))]
    check("qmul", arrays, dtypes, {"m": m, "lo": lo, "hi": hi, "dtype": KINDS[out]}, name=name)


@pytest.mark.parametrize("shape", [(1,), (17,), (3, 33), (2, 3, 9, 7), (1, 3, 64, 64), (1, 5, 4, 9), (2, 1, 3, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_quantize_and_dequantize(level, shape, kind):
    dtype = KINDS[kind]
    x = values(np.dtype("f4"), shape, 5)
    x.flat[::7] = (np.arange(x.flat[::7].size) + 0.5) * f32(dtype.scale)  # ties
    x.flat[0] = np.nan
    check("quantize", [x], [x.dtype], {"dtype": dtype}, name="int8_quantize")
    check("dequantize", [values(dtype, shape, 6)], [dtype], {}, name="int8_dequantize")


@pytest.mark.parametrize("kind", KINDS)
def test_fake_quant_observes_in_the_same_pass(level, kind):
    x = values(np.dtype("f4"), (3, 5, 7, 11), 5)
    x[0, 0, 0, 0] = np.nan
    check("fake_quant", [x], [x.dtype], {"dtype": KINDS[kind]}, name="int8_fake_quant")
    _, least, most = int8.fake_quant_observe(x, KINDS[kind])
    assert (least, most) == (np.nanmin(x), np.nanmax(x))


@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (1, 70, 5, 9), (2, 1, 9, 83), (1, 2, 4, 3)])
@pytest.mark.parametrize(("kind", "out"), [("u8z", "s8"), ("s8z", "u8z")])
@pytest.mark.parametrize("columns", [(2, 1, (0, 1)), (1, 1, (0, 0)), (3, 1, (2, 1)), (3, 2, (1, 1))])
def test_pooling(level, shape, kind, out, columns):
    x, dtype, (kernel, stride, padding) = [values(KINDS[kind], shape, 3)], [KINDS[kind]], columns
    window = {"kernel": (3, kernel), "stride": (2, stride), "padding": ((1, 1), padding)}
    for inside in (True, False):
        attrs = {**window, "count_include_pad": inside, "dtype": KINDS[out]}
        check("qavg_pool2d", x, dtype, attrs, name="int8_avg_pool2d")
    for keep in (True, False):
        attrs = {"axis": (2, 3), "keepdims": keep, "dtype": KINDS[out]}
        check("qmean", x, dtype, attrs, name="int8_mean")
    check("max_pool2d", x, dtype, window, name="int8_max_pool2d")


@pytest.mark.parametrize(("kind", "out"), [("u8", "s8"), ("s8z", "u8z")])
def test_table(level, kind, out):
    table = values(KINDS[out], (256,), 4)
    x = values(KINDS[kind], (2, 3, 40, 50), 5)
    dtypes = [KINDS[kind], table.dtype]
    check("qtable", [x, table], dtypes, {"dtype": KINDS[out]}, name="int8_table", constants=(1,))
    for size in (1, 63, 64, 65, 95, 97):
        few = values(KINDS[kind], (size,), size)
        check("qtable", [few, table], dtypes, {"dtype": KINDS[out]}, name="int8_table", constants=(1,))


@functools.cache
def stream():
    """A fixed pseudo-random stream of accumulators and parameters, with its NumPy outputs hashed."""
    rng = np.random.default_rng(2024)
    digest, rounds = hashlib.sha256(), []
    for r in range(12):
        c = (64, 37, 130)[r % 3]
        acc = rng.integers(-(10**6), 10**6, (3000, c)).astype(np.int32)
        acc[::50] = rng.integers(-(2**30), 2**30, acc[::50].shape)
        b = rng.integers(-(10**5), 10**5, c).astype(np.int32)
        mantissa = rng.integers(16, 32, c) / 16 if r & 2 else rng.random(c) + 1  # few bits: many ties
        M = (mantissa * 2.0 ** -rng.integers(10, 26, c)).astype(f32)
        B = (rng.integers(-200, 200, c) * 0.25 * bool(r & 4)).astype(f32)
        res = rng.integers(0, 256, acc.shape).astype(np.uint8) if r & 1 else None
        lo, hi, zero = ((-128, 127, 0), (0, 255, 0), (-13, 100, 13))[r % 3]
        dtype = np.int8 if lo == -128 else np.uint8
        ratio = integer.cut16(0.3 + r * 0.07)
        out = Output(lo=lo, hi=hi, z_y=zero, dtype=dtype)
        centred = None if res is None else res.astype(np.int32) - 77
        want = integer.epilogue(acc, b, M, B, out, axis=-1, residual=centred, ratio=ratio)
        digest.update(want.tobytes())
        rounds.append((acc, res, want, b, M, B, [lo, hi, zero, 0], ratio))
    return rounds, digest.hexdigest()


def test_epilogue_hash(level):
    rounds, want_hash = stream()
    digest = hashlib.sha256()
    for acc, res, want, b, M, B, clamp, ratio in rounds:
        y = np.empty_like(want)
        residual = None if res is None else [77, 0]
        _core.int8_epilogue(acc, res, y, b, M, B, clamp, residual, ratio)
        np.testing.assert_array_equal(y, want)
        digest.update(y.tobytes())
    assert digest.hexdigest() == want_hash


def test_a_kernel_off_by_one_step_is_seen():
    x, dtype = values(KINDS["u8"], (4, 4), 1), KINDS["u8"]
    problem = problem_of("requantize", [TensorSpec(x.shape, dtype)], {"ratio": 0.5, "lo": 0, "hi": 255, "dtype": dtype})
    wrong = reference_runner(get_op("requantize"), problem, True)(x) + 1
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(family("requantize").kernels[0].run(problem, x), wrong)


def test_lists_say_why_a_kernel_is_not_taken():
    attrs = {**place(), "lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"}
    specs = [TensorSpec((1, 8, 4, 4), KINDS["u8"]), TensorSpec((4, 8, 1, 1), np.dtype(np.int8))]
    specs += [TensorSpec((4,), np.dtype(d)) for d in ("i4", "f4", "f4")]
    reasons = dict(family("qconv2d").explain(problem_of("qconv2d", specs, attrs)))
    assert reasons["int8_depthwise"].startswith("not depthwise")
    assert reasons["int8_conv"] == "usable"


def test_more_parts_than_one():
    spec = TensorSpec((1, 64, 28, 28), KINDS["u8"])
    problem = problem_of("requantize", [spec], {"ratio": 0.5, "lo": 0, "hi": 255, "dtype": KINDS["u8"]})
    step = family("requantize").kernels[0].make_step(problem, {}, 3)
    assert _core.int8_step_parts(step) == 3


@pytest.mark.parametrize("attrs", [{"stride": (2**31, 1)}, {"stride": (10**30, 10**30)}, {"dilation": (1, 2**40)}])
def test_steps_that_native_code_cannot_hold_go_to_the_reference(attrs):
    x, w = np.ones((1, 3, 4, 5), np.uint8), np.ones((2, 3, 1, 1), np.int8)
    b, m, bias = np.zeros(2, np.int32), np.ones(2, np.float32), np.zeros(2, np.float32)
    specs = [TensorSpec(x.shape, KINDS["u8"]), *(TensorSpec(a.shape, a.dtype) for a in (w, b, m, bias))]
    known = {**place(), **attrs, "lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"}
    problem = problem_of("qconv2d", specs, known)
    reasons = [family("qconv2d").reason(kernel, problem) for kernel in family("qconv2d").kernels]
    assert any("is left to the reference" in str(reason) for reason in reasons)
    assert None not in reasons
