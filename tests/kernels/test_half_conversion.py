"""float16 and bfloat16: conversions and every op give the bits that rounding the float32 result once gives."""

import ml_dtypes
import numpy as np
import pytest

import megengine.functional as F
from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.dispatch import apply, registry
from megengine.kernels import _core, isa, onednn
from megengine.kernels.half_conversion import HALVES, converted
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.tensor import Tensor, tensor

FLOAT16, FLOAT32 = np.dtype(np.float16), np.dtype(np.float32)
ALL = np.arange(1 << 16, dtype=np.uint16)
TYPES = [FLOAT16, bfloat16]
BF16 = isa.has("bf16") and onednn.available()


def edges():
    """Around every number of both types and every middle between two of them, and float32 numbers of all sizes."""
    random = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    float16 = [ALL.view(FLOAT16).astype(FLOAT32).view(np.uint32) + np.uint32(d) for d in (0, 1, 0xFFF, 0x1000, 0x1001)]
    both = [*float16, *((ALL.astype(np.uint32) << 16) + np.uint32(d) for d in (0, 1, 0x7FFF, 0x8000, 0x8001))]
    return np.concatenate([random, *both]).view(FLOAT32)


def assert_same_bits(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    nan = np.isnan(want.astype(FLOAT32))
    np.testing.assert_array_equal(np.isnan(got.astype(FLOAT32)), nan)
    bits = f"u{want.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(bits)[~nan], want.view(bits)[~nan])


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_every_number_and_every_middle(dtype, level):
    values = edges()
    with isa.capped(level), np.errstate(all="ignore"):
        assert_same_bits(converted(values, dtype), values.astype(dtype))
        assert_same_bits(converted(ALL.view(dtype), FLOAT32), ALL.view(dtype).astype(FLOAT32))


@pytest.mark.parametrize("level", isa.available())
@pytest.mark.parametrize("other", ["?", "i1", "u1", "i2", "i4", "i8", "f8", "f2", "bfloat16"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_other_types(dtype, other, level):
    other = bfloat16 if other == "bfloat16" else np.dtype(other)
    values = np.random.default_rng(0).normal(0, 30, 999).astype(FLOAT32)
    whole = np.abs(values) if other.kind == "u" else values
    with isa.capped(level), np.errstate(all="ignore"):
        halves = whole.astype(dtype)
        assert_same_bits(np.asarray(tensor(halves).astype(other).numpy()), halves.astype(other))
        others = whole.astype(other)
        assert_same_bits(tensor(others).astype(dtype).numpy(), others.astype(dtype))


def test_float64_is_rounded_once():
    between = np.array([1 + 2.0**-11 + 2.0**-40])  # float32 rounds it to the middle of two float16
    assert tensor(between, dtype="float64").astype("float16").numpy()[0] == np.float16(1 + 2.0**-10)


def test_order_in_memory_is_kept():
    pictures = np.zeros((2, 4, 5, 3), np.float32).transpose(0, 3, 1, 2)
    assert converted(pictures, bfloat16).transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize(
    ("arrays", "types", "message"),
    [
        ((np.zeros(2, np.float32), np.zeros(3, np.uint16)), ("float32", "bfloat16"), "arrays of one size"),
        ((np.zeros(2, np.float32), np.zeros(2, np.uint8)), ("float32", "bfloat16"), "arrays of one size"),
        ((np.zeros(2, np.float64), np.zeros(2, np.uint16)), ("float64", "float16"), "no cast of float64 to float16"),
    ],
)
def test_native_conversion_refuses(arrays, types, message):
    with pytest.raises(ValueError, match=message):
        _core.convert(arrays[0], types[0], arrays[1], types[1])


def _halves(sample, dtype):
    made = [
        Tensor(a.astype(dtype)) if isinstance(a, np.ndarray) and a.dtype.kind == "f" else Tensor(a)
        for a in sample.inputs
    ]
    return made if any(t.dtype == dtype for t in made) else None


ONLY_FLOAT32 = {"quantize", "fake_quant", "quantize_away", "fake_quant_away", "complex", "qrecurrent"}
CASES = [
    pytest.param(name, s, id=f"{name}-{i}")
    for name in sorted(registry)
    for i, s in enumerate(registry[name].samples())
    if not (registry[name].by_type or registry[name].random or name in ONLY_FLOAT32)
    and all(isinstance(a, np.ndarray) for a in s.inputs)
]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("name", "sample"), CASES)
def test_every_op_rounds_the_float32_result_once(name, sample, dtype):
    inputs = _halves(sample, dtype)
    if inputs is None:
        pytest.skip("no float operand")
    wide = [Tensor(t.numpy().astype(FLOAT32)) if t.dtype == dtype else t for t in inputs]
    with isa.capped("vnni" if isa.has("vnni") else isa.active()):
        got, want = apply(name, *inputs, **sample.attrs), apply(name, *wide, **sample.attrs)
    pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
    for a, b in pairs:
        with np.errstate(all="ignore"):
            assert_same_bits(np.asarray(a.numpy()), np.asarray(b.numpy().astype(a.numpy().dtype)))


def test_sums_are_kept_in_float32():
    ones = tensor(np.ones(5000, bfloat16))
    assert float(F.sum(ones)) == ml_dtypes.bfloat16(5000)  # bfloat16 itself stops at 256
    assert float(F.mean(ones)) == 1


LAYERS = {
    "conv2d": ((2, 8, 9, 9), (16, 8, 3, 3), {}),
    "depthwise": ((1, 35, 9, 9), (35, 1, 3, 3), {"groups": 35}),
    "linear": ((7, 40), (24, 40), None),
}


@pytest.mark.skipif(not BF16, reason="no instructions for bfloat16")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_of_the_cpu_are_one_rounding_from_float64(name):
    x_shape, w_shape, options = LAYERS[name]
    rng = np.random.default_rng(0)
    x, w, b = (rng.normal(0, 1, s).astype(bfloat16) for s in (x_shape, w_shape, w_shape[:1]))
    b = b if options is None else b.reshape(1, -1, 1, 1)
    run = F.linear if options is None else lambda *a: F.conv2d(*a, padding=1, **options)
    got = run(*map(tensor, (x, w, b))).numpy().astype(np.float64)
    if options is None:  # sum and bias are two ops
        want = (tensor(x.astype("f8") @ w.astype("f8").T).numpy().astype(bfloat16) + b).astype(np.float64)
    else:
        want = run(*(tensor(a.astype(np.float64)) for a in (x, w, b))).numpy()
    assert np.all(np.abs(got - want) <= 2.0**-7 * np.abs(want) + 1e-6)


@pytest.mark.skipif(not BF16, reason="no instructions for bfloat16")
@pytest.mark.parametrize(
    ("level", "activation", "reason"),
    [
        ("bf16", "relu", "usable"),
        ("bf16", "softplus", "usable"),
        ("vnni", "relu", "no instructions for bfloat16, active is vnni"),
    ],
)
def test_when_layers_compute_in_bfloat16(level, activation, reason):
    specs = [TensorSpec(s, bfloat16) for s in ((1, 8, 5, 5), (8, 8, 1, 1), (8,))]
    attrs = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "activation": activation}
    problem = Problem("fused_conv2d", specs, specs[:1], attrs)
    with isa.capped(level):
        assert dict(family("fused_conv2d").explain(problem, step=True))["onednn_fused_conv2d"] == reason


def test_both_types_are_known():
    assert {FLOAT16, bfloat16} == HALVES
