"""Elementwise integer ops on the emulated GPU equal their references in every value."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, problem_of, same
from emulated_gpu import EmulatedGpu

from megengine.core.dtype import quantized
from megengine.dispatch import get_op
from megengine.kernels.cuda import int_pointwise
from megengine.kernels.cuda.int_pointwise import KERNELS, broadcast_walk
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.reference.integer import cut16
from megengine.tensor import Tensor

f32 = np.float32
SIZES = [(), (0,), (1,), (3,), (4,), (5,), (2, 3, 5), (0, 4), (3, 1, 1, 7)]
TYPES = ["quint8", "qint8", "qint8_narrow", "qint16", "qint32", "qint4", "quint4", "qint1"]
EIGHT = ["quint8", "qint8", "qint16"]


def grid(rng, name, scale=0.05):
    """A dtype with a zero point of its own; the ends of 32 bits leave none."""
    least, most = (0, 0) if name in ("qint32", "qint16") else (-2, 2) if name.startswith("qint") else (0, 9)
    dtype = quantized(name, scale)
    return quantized(name, scale, int(np.clip(rng.integers(least, most + 1), dtype.qmin, dtype.qmax)))


def stored(rng, dtype, shape):
    least, most = (-1000, 1000) if dtype.itemsize == 4 else (dtype.qmin, dtype.qmax)
    return Tensor._wrap(rng.integers(least, most + 1, shape).astype(dtype.storage), dtype)


def reals(rng, shape, scale):
    """Values around a grid: ties, their neighbours, infinities and NaN."""
    t = rng.integers(-300, 300, shape).astype(np.float64) + rng.choice([0.5, 0.0, 0.25], shape)
    x = np.asarray(t * scale, f32)
    x = np.where(rng.random(shape) < 0.3, np.nextafter(x, f32(0)), x)
    ends = rng.choice(np.array([np.inf, -np.inf, np.nan, -0.0, 1e-42, 3e38], f32), shape)
    return np.asarray(np.where(rng.random(shape) < 0.1, ends, x), f32)


@pytest.mark.parametrize("op", KERNELS)
def test_samples(op):
    for sample in get_op(op).samples():
        inputs = [narrowed(v) for v in sample.inputs]
        same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs))


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("op", ["quantize", "fake_quant", "quantize_away", "fake_quant_away"])
def test_rounding_to_integers(op, name):
    rng = np.random.default_rng(1)
    for shape in (*SIZES, (700,)):
        dtype = grid(rng, name, 0.0371)
        x = reals(rng, shape, dtype.scale)
        attrs = {"dtype": dtype} | ({"factor": None} if op == "quantize_away" else {})
        same(on_gpu(op, (x,), attrs), by_reference(op, (x,), attrs))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("op", ["quantize", "fake_quant", "quantize_away", "fake_quant_away"])
def test_scales_along_an_axis(op, axis):
    rng = np.random.default_rng(2)
    shape = (3, 4, 5)
    dtype = quantized("qint8", rng.uniform(0.01, 0.1, shape[axis]), axis=axis)
    x = reals(rng, shape, 0.05)
    attrs = {"dtype": dtype} | ({"factor": None} if op == "quantize_away" else {})
    same(on_gpu(op, (x,), attrs), by_reference(op, (x,), attrs))
    one = quantized("qint8", [0.03], axis=axis)  # one scale along an axis
    same(on_gpu(op, (x,), attrs | {"dtype": one}), by_reference(op, (x,), attrs | {"dtype": one}))


@pytest.mark.parametrize("name", TYPES)
def test_dequantize(name):
    rng = np.random.default_rng(3)
    for shape in SIZES:
        x = stored(rng, grid(rng, name), shape)
        same(on_gpu("dequantize", (x,)), by_reference("dequantize", (x,)))
    along = stored(rng, quantized(name, [0.1, 0.2, 0.3], axis=1), (2, 3, 4))
    same(on_gpu("dequantize", (along,)), by_reference("dequantize", (along,)))


@pytest.mark.parametrize(
    ("x", "y"),
    [("quint8", "qint8"), ("qint8", "quint8"), ("qint16", "qint8"), ("qint8", "qint16"), ("qint8", "qint32")],
)
def test_requantize(x, y):
    rng = np.random.default_rng(4)
    for shape in SIZES:
        x_type, y_type = grid(rng, x), grid(rng, y)
        most = min(y_type.qmax - y_type.zero_point, 1 << 20)
        attrs = {"ratio": float(cut16(rng.uniform(0.2, 3))), "lo": 0, "hi": most, "dtype": y_type}
        inputs = (stored(rng, x_type, shape),)
        same(on_gpu("requantize", inputs, attrs), by_reference("requantize", inputs, attrs))


@pytest.mark.parametrize(
    ("x", "y"), [("quint8", "qint8"), ("qint8", "qint32"), ("qint32", "quint8"), ("qint32", "qint32")]
)
def test_integers_away(x, y):
    rng = np.random.default_rng(5)
    attrs = {"dtype": grid(rng, y), "factor": 0.5}  # every second value is a tie
    inputs = (stored(rng, grid(rng, x), (7, 33)),)
    same(on_gpu("quantize_away", inputs, attrs), by_reference("quantize_away", inputs, attrs))


PAIRS = [((2, 3, 4, 4), (2, 3, 4, 4)), ((5,), (5,)), ((0, 3), (0, 3)), ((), ()), ((2, 3, 4), (3, 1)), ((4, 1), (1, 5)),
         ((2, 3), ()), ((), (2, 3)), ((2, 6, 1, 1), (2, 6, 5, 3)), ((2, 1, 3, 1, 2), (4, 1, 5, 2)), ((0, 3), (3,)),
         ((1, 7), (6, 7))]  # fmt: skip
TRIPLES = [("quint8", "qint8", "quint8"), ("qint8", "quint8", "qint8"), ("qint16", "qint16", "qint16"),
           ("qint16", "quint8", "qint8"), ("qint8", "qint8", "qint32")]  # fmt: skip


@pytest.mark.parametrize("op", ["qadd", "qmul", "qmaximum", "qminimum"])
@pytest.mark.parametrize(("a", "r", "y"), TRIPLES)
def test_pairs(op, a, r, y):
    rng = np.random.default_rng(6)
    for shapes in PAIRS:
        y_type = grid(rng, y)
        ends = {
            "lo": max(y_type.qmin - y_type.zero_point, -(1 << 20)),
            "hi": min(y_type.qmax - y_type.zero_point, 1 << 20),
        }
        factors = {"m": 2.0**-6} if op == "qmul" else {"ra": float(cut16(rng.uniform(-1, 1))), "rb": 0.5}
        inputs = tuple(stored(rng, grid(rng, t), shape) for t, shape in zip((a, r), shapes, strict=True))
        attrs = factors | ends | {"dtype": y_type}
        same(on_gpu(op, inputs, attrs), by_reference(op, inputs, attrs))


@pytest.mark.parametrize("x", EIGHT)
def test_tables(x):
    rng = np.random.default_rng(7)
    for y, axis in (("quint8", None), ("qint16", None), ("qint8", 1), ("quint8", -1)):
        x_type, y_type = grid(rng, x), grid(rng, y)
        inputs = stored(rng, x_type, (2, 3, 40))
        shape = (x_type.codes,) if axis is None else (inputs.shape[axis], x_type.codes)
        table = rng.integers(y_type.qmin, y_type.qmax + 1, shape).astype(y_type.storage)
        attrs = {"dtype": y_type, "axis": axis}
        same(on_gpu("qtable", (inputs, table), attrs), by_reference("qtable", (inputs, table), attrs))


def test_arrays_at_any_address():
    """A part of a larger array may begin anywhere."""
    rng = np.random.default_rng(8)
    whole = stored(rng, quantized("quint8", 0.1, 3), (41,))
    part = Tensor._wrap(np.asarray(whole._storage())[3:].copy(), whole.dtype)
    attrs = {"ra": 0.5, "rb": 0.75, "lo": -3, "hi": 100, "dtype": whole.dtype}
    with installed(EmulatedGpu()) as gpu:
        x = gpu.upload(np.asarray(whole._storage()))
        inner = type(x)(gpu, x.owner, x.address + 3, (38,), x.dtype)
        for op, inputs, extra in (("dequantize", (part,), {}), ("qadd", (part, part), attrs)):
            run = int_pointwise.KERNELS[op][0].run
            found = run(problem_of(op, inputs, extra), *(inner for _ in inputs))
            same((gpu.download(found),), by_reference(op, inputs, extra))


def test_large_tensors_take_four_elements_a_thread():
    rng = np.random.default_rng(9)
    x = stored(rng, quantized("qint8", 0.1), (64, 67))
    with installed(EmulatedGpu()) as gpu:
        on_gpu("dequantize", (x,), gpu=gpu)
        assert gpu.launched == [("int_pointwise.cu", "cuda_convert")]


def test_walks_join_axes():
    assert broadcast_walk((2, 3, 4), (2, 3, 4), (2, 3, 4)) == [(24, 1, 1)]
    assert broadcast_walk((2, 3, 4, 5), (2, 3, 4, 5), (2, 3, 1, 1)) == [(20, 1, 0), (6, 20, 1)]
    assert broadcast_walk((2, 3, 4), (3, 1), (2, 3, 4)) == [(4, 0, 1), (3, 1, 4), (2, 0, 12)]
    assert broadcast_walk((), (), ()) == [(1, 0, 0)]


@pytest.mark.parametrize("op", ["quantize", "requantize", "qadd"])
def test_planted_rounding_is_seen(monkeypatch, op):
    """Half up instead of half to even: the inputs hold ties."""
    rng = np.random.default_rng(10)
    dtype = quantized("qint8", 1.0)
    x = stored(rng, dtype, (50,))
    calls = {
        "quantize": ((np.arange(-20, 20, dtype=f32) + f32(0.5),), {"dtype": dtype}),
        "requantize": ((x,), {"ratio": 0.5, "lo": -128, "hi": 127, "dtype": dtype}),
        "qadd": ((x, x), {"ra": 0.5, "rb": 1.0, "lo": -128, "hi": 127, "dtype": dtype}),
    }
    make = int_pointwise.program
    planted = lambda file, **macros: make(file, ROUND="[](float t) { return (int)floorf(t + 0.5f); }", **macros)  # noqa: E731
    monkeypatch.setattr(int_pointwise, "program", planted)
    for memo in (int_pointwise._one_scale, int_pointwise._pair):
        memo.cache_clear()
    found, want = on_gpu(op, *calls[op]), by_reference(op, *calls[op])
    for memo in (int_pointwise._one_scale, int_pointwise._pair):
        memo.cache_clear()
    assert not np.array_equal(found[0], want[0])
