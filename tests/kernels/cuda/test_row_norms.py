"""Normalisation of rows and means over channels on the emulated GPU."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, same
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.dispatch import get_op

TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "float16": 2e-3, "bfloat16": 2e-2}
NORM = {"axes": 1, "eps": 1e-5, "centred": True, "reciprocal": False}


def _check(op, inputs, attrs, gpu=None):
    """Of halves the result is that of float32 numbers, rounded once."""
    dtype = inputs[0].dtype
    wide = [x.astype(np.float32) if dtype.itemsize == 2 else x for x in inputs]
    wanted = [w.astype(dtype) for w in by_reference(op, wide, attrs)]
    rough = TOLERANCE[dtype.name]
    same(on_gpu(op, inputs, attrs, kernel=f"cuda_{op}", gpu=gpu), wanted, rtol=rough, atol=rough)


def _values(*shape, dtype=np.float32):
    return (np.random.default_rng(list(shape)).standard_normal(shape) * 2 + 1).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", ["fused_norm", "fused_channel_mean"])
def test_samples(op, dtype):
    for sample in get_op(op).samples():
        _check(op, [np.asarray(narrowed(v, dtype)) for v in sample.inputs], sample.attrs)


@pytest.mark.parametrize("n", [1, 3, 4, 31, 32, 33, 128, 129, 512, 513, 516, 1000, 8195, 16_388])
def test_rows(n):
    x, factor, shift = _values(3, n), _values(n), _values(n)
    _check("fused_norm", (x, factor, shift), NORM)
    _check("fused_norm", (x, factor), {**NORM, "centred": False})
    _check("fused_norm", (x,), {**NORM, "reciprocal": True})


def test_many_rows_of_several_axes():
    _check("fused_norm", (_values(70, 2, 4), _values(2, 4), _values(2, 4)), {**NORM, "axes": 2})


@pytest.mark.parametrize("dtype", [np.float16, bfloat16], ids=["float16", "bfloat16"])
def test_halves(dtype):
    for n in (3, 8, 512, 1000, 1032, 1033, 16_400):
        _check("fused_norm", [_values(*s, dtype=dtype) for s in ((2, n), (n,), (n,))], NORM)
    _check("fused_channel_mean", (_values(2, 7, 3, 5, dtype=dtype),), {"window": 3, "before": 1})


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_threads(order):
    for n in (40, 1000, 8195):
        _check("fused_norm", (_values(2, n), _values(n), _values(n)), NORM, EmulatedGpu(order=order))


def test_channel_means_have_the_bits_of_the_reference():
    x, attrs = _values(2, 9, 11, 13), {"window": 5, "before": 2}
    same(on_gpu("fused_channel_mean", (x,), attrs), by_reference("fused_channel_mean", (x,), attrs))


def test_no_elements():
    _check("fused_norm", (_values(0, 3),), NORM)
    _check("fused_channel_mean", (_values(0, 3, 2, 2),), {"window": 3, "before": 1})


def test_bits_of_the_reference():
    for n in (*range(1, 20), *range(126, 146, 3), 256, 257, 300, 1000, 1025, 4097):
        inputs = (_values(3, n), _values(n), _values(n))
        for factors, more in ((2, {}), (1, {"centred": False}), (0, {"reciprocal": True})):
            given, attrs = inputs[: 1 + factors], {**NORM, **more}
            found = on_gpu("fused_norm", given, attrs, kernel="cuda_fused_norm_in_order")
            same(found, by_reference("fused_norm", given, attrs))
    given = (_values(70, 2, 4), _values(2, 4), _values(2, 4))
    found = on_gpu("fused_norm", given, {**NORM, "axes": 2}, kernel="cuda_fused_norm_in_order")
    same(found, by_reference("fused_norm", given, {**NORM, "axes": 2}))
