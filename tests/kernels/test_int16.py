"""Own kernels of 16-bit values against the executable specification, at every instruction set of this machine."""

import numpy as np
import pytest

from megengine.core.dtype import QuantizedDType, quantized
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer, reference_runner
from megengine.kernels import int16, isa
from megengine.kernels.reference import integer
from megengine.kernels.registry import family
from tests.kernels.test_int8 import CONVS, DEPTHWISE, KINDS, check, place, problem_of, values

TYPES = {**KINDS, "s16": quantized("qint16", 0.0007)}
TRIPLES = [  # of source, output and residual, one of them wide
    ("s16", "u8z", None),
    ("s16", "s16", "s16"),
    ("s16", "s8", "u8z"),
    ("u8z", "s16", "s16"),
    ("s8z", "s16", "s8z"),
    ("u8", "u8z", "s16"),
    ("s16", "float32", None),
]


@pytest.fixture(params=isa.available())
def level(request):
    with isa.capped(request.param):
        yield request.param


def arrays_of(x, w, kind, seed=1):
    """A layer's source, weight, b, M and B: results fill the range of 16 bits and go beyond that of 8."""
    rng, depth, x_type = np.random.default_rng(seed), int(np.prod(w[1:])), TYPES[kind]
    step = 2.0 ** -(8 if x_type.itemsize == 1 else 14)
    M = ((rng.random(w[0]) + 0.5) * step / np.sqrt(depth)).astype(np.float32)
    ends = rng.integers(-900, 900, w[0]).astype(np.int32), rng.normal(0, 20, w[0]).astype(np.float32)
    weight = rng.integers(-127, 128, w).astype(np.int8)
    return [values(x_type, x, seed), weight, ends[0], M, ends[1]]


def check_layer(op, x, w, geometry, kinds, name):
    kind, out, residual = kinds
    dtype = TYPES.get(out, out)
    zero = dtype.zero_point if isinstance(dtype, QuantizedDType) else 0
    lo, hi = (dtype.qmin - zero, dtype.qmax - zero - 3) if isinstance(dtype, QuantizedDType) else (0, 0)
    arrays = arrays_of(x, w, kind)
    attrs = {**geometry, "lo": lo, "hi": hi, "ratio": 0.0, "dtype": dtype}
    dtypes = [TYPES[kind], *[a.dtype for a in arrays[1:]]]
    if residual:
        attrs["ratio"] = float(integer.cut16(0.7123))
        specs = [TensorSpec(a.shape, d) for a, d in zip(arrays, dtypes, strict=True)]
        arrays.append(values(TYPES[residual], infer(op, specs, attrs).shape, 9))
        dtypes.append(TYPES[residual])
    check(op, arrays, dtypes, attrs, name=name, constants=(1, 2, 3, 4))


FITTING = sorted(case for case in CONVS if case != "deep")


@pytest.mark.parametrize("case", FITTING)
@pytest.mark.parametrize("kinds", TRIPLES, ids=str)
def test_convolution(level, case, kinds):
    check_layer("qconv2d", *CONVS[case], kinds, "int16_conv")


@pytest.mark.parametrize("case", DEPTHWISE)
@pytest.mark.parametrize("kinds", TRIPLES, ids=str)
def test_depthwise(level, case, kinds):
    x, k, geometry = DEPTHWISE[case]
    check_layer("qconv2d", x, (x[1], 1, k, k), {**geometry, "groups": x[1]}, kinds, "int16_depthwise")


@pytest.mark.parametrize("rows", [1, 7, 13])
@pytest.mark.parametrize("outputs", [1, 17, 64, 130])
@pytest.mark.parametrize("kinds", [TRIPLES[1], TRIPLES[3]], ids=str)
def test_linear(level, rows, outputs, kinds):
    check_layer("qlinear", (rows, 21), (outputs, 21), {}, kinds, "int16_linear")


@pytest.mark.parametrize("shape", [(1,), (15,), (2, 3, 7, 5), (1, 8, 40, 40)])
@pytest.mark.parametrize(("a", "r", "out"), [("s16", "s16", "s16"), ("s16", "u8z", "s8z"), ("s8z", "s16", "s16")])
def test_elementwise(level, shape, a, r, out):
    dtype, ra, rb = TYPES[out], float(integer.cut16(0.61)), float(integer.cut16(1.37))
    ends = {"lo": dtype.qmin - dtype.zero_point + 1, "hi": dtype.qmax - dtype.zero_point, "dtype": dtype}
    arrays, dtypes = [values(TYPES[a], shape, 1), values(TYPES[r], shape, 2)], [TYPES[a], TYPES[r]]
    check("qadd", arrays, dtypes, {"ra": ra, "rb": rb, **ends}, name="int16_add")
    check("qmul", arrays, dtypes, {"m": 3e-4, **ends}, name="int16_multiply")
    check("requantize", arrays[:1], dtypes[:1], {"ratio": ra, **ends}, name="int16_requantize")


@pytest.mark.parametrize("shape", [(17,), (2, 3, 9, 7)])
def test_quantize_and_dequantize(level, shape):
    x, dtype = values(np.dtype("f4"), shape, 5), TYPES["s16"]
    x.flat[::7] = (np.arange(x.flat[::7].size) + 0.5) * np.float32(dtype.scale)  # ties
    x.flat[0] = np.nan
    check("quantize", [x], [x.dtype], {"dtype": dtype}, name="int16_quantize")
    check("dequantize", [values(dtype, shape, 6)], [dtype], {}, name="int16_dequantize")


POOLS = [("s16", "s16"), ("s16", "u8z"), ("s8z", "s16")]


@pytest.mark.parametrize("shape", [(2, 3, 7, 6), (1, 70, 5, 9), (2, 1, 9, 83), (1, 2, 4, 3)])
@pytest.mark.parametrize(("kind", "out"), POOLS)
@pytest.mark.parametrize("columns", [(2, 1, (0, 1)), (3, 1, (2, 1)), (3, 2, (1, 1))])
def test_pooling(level, shape, kind, out, columns):
    x, dtype, (kernel, stride, padding) = [values(TYPES[kind], shape, 3)], [TYPES[kind]], columns
    window = {"kernel": (3, kernel), "stride": (2, stride), "padding": ((1, 1), padding)}
    attrs = {**window, "count_include_pad": True, "dtype": TYPES[out]}
    check("qavg_pool2d", x, dtype, attrs, name="int16_avg_pool2d")
    check("qavg_pool2d", x, dtype, {**attrs, "count_include_pad": False}, name="int16_avg_pool2d")
    for keep in (True, False):
        check("qmean", x, dtype, {"axis": (2, 3), "keepdims": keep, "dtype": TYPES[out]}, name="int16_mean")
    if kind == out:
        check("max_pool2d", x, dtype, window, name="int16_max_pool2d")


@pytest.mark.parametrize(
    ("shape", "axes"), [((1, 1), 1), ((5, 17), 1), ((3, 4, 5), 2), ((2, 107), 1), ((2, 256), 1), ((1, 32768), 1)]
)
@pytest.mark.parametrize(("kind", "out"), [*POOLS, ("s16", "s8"), ("u8z", "s16")])
@pytest.mark.parametrize("centred", [True, False])
def test_normalization(level, shape, axes, kind, out, centred):
    rng, tail = np.random.default_rng(0), shape[len(shape) - axes :]
    gain = 40.0 if TYPES[out].itemsize == 1 else 9000.0
    factors = [(rng.random(tail) * gain).astype(np.float32), rng.normal(0, 9, tail).astype(np.float32)]
    x = values(TYPES[kind], shape, 1)
    attrs = {"axes": axes, "E": 0.37, "centred": centred, "dtype": TYPES[out]}
    check("qnorm", [x, *factors], [TYPES[kind], *[a.dtype for a in factors]], attrs, name="int16_normalize")
    x.flat[:] = np.iinfo(x.dtype).min  # the largest sums
    check("qnorm", [x, *factors], [TYPES[kind], *[a.dtype for a in factors]], attrs, name="int16_normalize")


@pytest.mark.parametrize(("size", "fits"), [(255, True), (256, False)])
def test_means_of_more_values_than_int32_sums_hold_are_left_to_the_reference(size, fits):
    x = np.full((1, 1, size, 256), -32768, np.int16)
    spec, attrs = TensorSpec(x.shape, TYPES["s16"]), {"axis": (2, 3), "keepdims": False, "dtype": TYPES["s16"]}
    problem = problem_of("qmean", [spec], attrs)
    assert (family("qmean").select(problem, {}) is int16.int16_mean) == fits
    if fits:
        want = reference_runner(get_op("qmean"), problem, True)(x)
        np.testing.assert_array_equal(int16.int16_mean.run(problem, x), want)


@pytest.mark.parametrize(("bias", "fits"), [(2**17 - 1, True), (2**17, False)])
def test_sums_that_do_not_fit_are_left_to_the_reference(level, bias, fits):
    """The sum of 516 products of -32768 and 127 leaves 2**17 - 1 for the bias."""
    arrays = arrays_of((1, 516, 1, 1), (1, 516, 1, 1), "s16")
    arrays[0][...], arrays[1][...], arrays[2][...] = -32768, 127, -bias
    attrs = {**place(), "lo": -32768, "hi": 32767, "ratio": 0.0, "dtype": TYPES["s16"]}
    dtypes = [TYPES["s16"], *[a.dtype for a in arrays[1:]]]
    problem = problem_of("qconv2d", [TensorSpec(a.shape, d) for a, d in zip(arrays, dtypes, strict=True)], attrs)
    chosen = family("qconv2d").select(problem, dict(enumerate(arrays)))
    assert (chosen is int16.int16_conv) == fits
    if chosen:
        want = reference_runner(get_op("qconv2d"), problem, True)(*arrays)
        np.testing.assert_array_equal(chosen.run(problem, *arrays), want)


def test_types_that_the_kernels_do_not_take():
    spec = TensorSpec((1, 4, 3, 3), TYPES["u8"])
    attrs = {"ratio": 0.5, "lo": 0, "hi": 255, "dtype": TYPES["u8"]}
    assert int16.int16_requantize.usable(problem_of("requantize", [spec], attrs)) == "no value of 16 bits"
    moved = TensorSpec((1, 4, 3, 3), quantized("qint16", 0.1, 3))
    assert "16 bits with zero point 0" in str(int16.int16_requantize.usable(problem_of("requantize", [moved], attrs)))
