"""Batch normalisation on the emulated GPU: training, its gradient, and given statistics."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.dispatch import get_op

OPS = ("batch_norm", "batch_norm_training", "batch_norm_training_backward")
TOLERANCE = {"float32": 2e-5, "float64": 1e-12, "float16": 4e-3, "bfloat16": 3e-2}
# rows, registers, registers with 16-byte loads, several blocks a channel with and without them
SHAPES = [
    (7, 4),
    (300, 33),
    (1, 2, 1),
    (2, 3, 7, 7),
    (3, 2, 8, 4),
    (2, 1, 129, 129),
    (2, 2, 128, 132),
    (5, 3, 11),
    (1, 1, 1, 2),
]


def _check(op, inputs, attrs, gpu=None):
    """Of halves the result is that of float32 numbers, rounded once."""
    wide = [x.astype(np.float32) if x.dtype.itemsize == 2 else x for x in inputs]
    found = on_gpu(op, inputs, attrs, gpu=gpu)
    for have, want in zip(found, by_reference(op, wide, attrs), strict=True):
        rough = TOLERANCE[have.dtype.name]
        scale = max(1.0, float(np.abs(want).max(initial=0)))
        same((have,), (want.astype(have.dtype),), rtol=rough, atol=rough * scale)


def _inputs(op, shape, dtype=np.float32, vectors=np.float32):
    rng = np.random.default_rng(list(shape))
    x, ct = ((rng.standard_normal(shape) * 2 + offset).astype(dtype) for offset in (3, -0.5))
    c = shape[1]
    scale, bias, mean = (rng.standard_normal(c).astype(vectors) for _ in range(3))
    var = (rng.random(c) + 0.5).astype(vectors)
    return {
        "batch_norm": (x, scale, bias, mean, var),
        "batch_norm_training": (x, scale, bias),
        "batch_norm_training_backward": (x, ct, scale, mean + vectors(3), var),
    }[op]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", OPS)
def test_samples(op, dtype):
    for sample in get_op(op).samples():
        _check(op, [np.asarray(narrowed(v, dtype)) for v in sample.inputs], sample.attrs)


@pytest.mark.parametrize("op", OPS)
def test_shapes(op):
    for shape in SHAPES:
        _check(op, _inputs(op, shape), {"eps": 1e-5})


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("op", OPS)
def test_orders_of_threads(op, order):
    for shape in ((20, 5), (2, 2, 65, 2), (2, 1, 130, 128)):
        _check(op, _inputs(op, shape), {"eps": 1e-5}, EmulatedGpu(order=order))


@pytest.mark.parametrize(
    ("dtype", "vectors"),
    [
        (np.float16, np.float32),
        pytest.param(np.float16, np.float16, marks=pytest.mark.slow),
        pytest.param(bfloat16, np.float32, marks=pytest.mark.slow),
        pytest.param(bfloat16, bfloat16.type, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("op", OPS)
def test_halves(op, dtype, vectors):
    for shape in ((7, 4), (2, 3, 7, 7), (2, 3, 8, 8), (2, 1, 129, 136), (2, 1, 131, 129)):
        _check(op, _inputs(op, shape, dtype, vectors), {"eps": 1e-3})


@pytest.mark.parametrize("op", OPS)
def test_halves_in_planes_of_a_multiple_of_four(op):
    """A channel of 32 pictures of 14 x 14 stays in registers, and larger ones are split; all by loads of four."""
    for shape, launches in (((1, 2, 2, 2), 1), ((2, 3, 6, 6), 1), ((32, 1, 14, 14), 1), ((2, 1, 94, 94), 2)):
        gpu = EmulatedGpu()
        _check(op, _inputs(op, shape, np.float16), {"eps": 1e-3}, gpu)
        assert len(gpu.launched) == (1 if op == "batch_norm" else launches)
        assert all("_four" in str(one) for one in gpu.launched)


def test_given_statistics_have_the_bits_of_the_reference():
    for shape in SHAPES:
        inputs = _inputs("batch_norm", shape)
        same(on_gpu("batch_norm", inputs, {"eps": 1e-5}), by_reference("batch_norm", inputs, {"eps": 1e-5}))


def test_a_mean_far_from_zero_keeps_the_variance():
    x = (1000 + np.random.default_rng(0).standard_normal((2, 2, 150, 120))).astype(np.float32)
    vectors = (np.ones(2, np.float32), np.zeros(2, np.float32))
    found = on_gpu("batch_norm_training", (x, *vectors), {"eps": 1e-5})
    np.testing.assert_allclose(found[2], x.astype(np.float64).var((0, 2, 3)), rtol=1e-4)


def test_ways():
    for shape, launches in (((7, 4), 1), ((2, 3, 7, 7), 1), ((2, 1, 130, 128), 2)):
        for op in OPS[1:]:
            gpu = EmulatedGpu()
            _check(op, _inputs(op, shape), {"eps": 1e-5}, gpu)
            assert len(gpu.launched) == launches


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_running_statistics_have_the_bits_of_the_reference(dtype):
    for sample in get_op("running_statistics").samples():
        inputs = [np.asarray(v).astype(dtype) for v in sample.inputs]
        same(
            on_gpu("running_statistics", inputs, sample.attrs),
            by_reference("running_statistics", inputs, sample.attrs),
        )


def test_no_elements():
    for op in ("batch_norm", "batch_norm_training_backward"):
        for shape in ((0, 3), (0, 3, 2, 2), (2, 3, 0)):
            _check(op, _inputs(op, shape), {"eps": 1e-5})
