"""Pooling on the emulated GPU: largest numbers, means, places and gradients, in rows and with channels last."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, parts, problem_of, quantized, same
from emulated_gpu import EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels.cuda import pooling
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.registry import family

OPS = tuple(pooling.KERNELS)
DTYPES = [pytest.param(np.dtype(t), id=np.dtype(t).name) for t in (np.uint8, np.int16, np.float16)] + [
    pytest.param(np.dtype(t), id=np.dtype(t).name, marks=pytest.mark.slow)
    for t in ("b", "H", "i", "I", "l", "L", "d", bfloat16)
]


def _window(kernel, stride=None, padding=None):
    stride = stride or kernel
    return {"kernel": kernel, "stride": stride, "padding": padding or ((0, 0),) * len(kernel)}


# windows without gaps over planes: unrolled ones, others, wide borders, the whole plane, one row
PLANES = [
    ((2, 3, 7, 8), _window((3, 3), (2, 2), ((1, 1), (1, 1)))),
    ((1, 2, 6, 5), _window((2, 2))),
    ((1, 2, 5, 4), _window((2, 3), (1, 1), ((1, 1), (2, 2)))),
    ((1, 2, 9, 17), _window((4, 5), (3, 2), ((3, 0), (1, 4)))),
    ((2, 2, 5, 6), _window((5, 6))),
    ((3, 1, 1, 1), _window((1, 1))),
    ((1, 1, 20, 30), _window((17, 16), (1, 3), ((8, 8), (0, 15)))),
    ((0, 2, 4, 4), _window((2, 2))),
    ((2, 0, 4, 4), _window((2, 2))),
]


def _values(shape, dtype, seed=0):
    """Numbers with ties, of all signs that the dtype has."""
    rng = np.random.default_rng([seed, *shape])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    return (rng.integers(-60, 60, shape) / 16).astype(np.float32).astype(dtype)


def _attrs(op, window):
    if op == "avg_pool2d":
        return [{**window, "count_include_pad": include} for include in (True, False)]
    return [window]


def _check(op, inputs, attrs):
    """Equal bits; sums of a whole plane have another order."""
    half = parts(inputs[0])[0].dtype.itemsize == 2 and parts(inputs[0])[0].dtype.kind not in "iu"
    found = on_gpu(op, inputs, attrs)
    wanted = by_reference(op, [x.astype(np.float32) for x in inputs] if half else inputs, attrs)
    wanted = [w.astype(inputs[0].dtype) if half and w.dtype == np.float32 else w for w in wanted]
    whole = op in ("avg_pool2d", "pool") and attrs["kernel"] == parts(inputs[0])[0].shape[2:]
    size = {2: 2e-3, 4: 1e-6, 8: 1e-14}.get(found[0].dtype.itemsize, 0) if whole and found[0].dtype.kind == "f" else 0
    same(found, wanted, rtol=size, atol=size)
    return found


def _cotangent(x, attrs, seed=9):
    out = infer("max_pool2d", [TensorSpec(x.shape, x.dtype)], attrs)
    return _values(out.shape, x.dtype, seed)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("op", OPS)
def test_samples(op, dtype):
    for sample in get_op(op).samples():
        if any(map(quantized, sample.inputs)) and dtype == np.float64:
            continue
        _check(op, [narrowed(v, dtype) for v in sample.inputs], sample.attrs)


@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize("dtype", [np.dtype(np.float32), *DTYPES])
def test_planes(op, dtype):
    cases = PLANES if dtype == np.float32 else PLANES[:5]
    for shape, window in cases:
        for attrs in _attrs(op, window):
            _check(op, (_values(shape, dtype),), attrs)


def test_stored_integers():
    """Padding never wins, whatever the zero point is; means of integers round as the reference's."""
    for dtype in (np.int8, np.uint8, np.int16):
        for fill in (np.iinfo(dtype).min, np.iinfo(dtype).max, 0):
            x = np.full((1, 2, 4, 5), fill, dtype)
            _check("max_pool2d", (x,), _window((3, 3), (2, 2), ((1, 1), (1, 1))))
    x = np.array([[[[-3, 2, -2, 3], [-2, 2, 2, 2]]]], np.int8)
    for attrs in _attrs("avg_pool2d", _window((1, 2), (1, 1), ((0, 0), (1, 0)))):
        _check("avg_pool2d", (x,), attrs)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), *DTYPES[2:3], *DTYPES[-2:]])
def test_gradient(dtype):
    for shape, window in PLANES:
        x = _values(shape, dtype)
        _check("max_pool2d_backward", (_cotangent(x, window), x), window)


def test_means_of_more_elements_than_an_integer_counts():
    for dtype in (np.int8, np.uint8):
        x = _values((1, 2, 17, 16), np.dtype(dtype))
        for attrs in _attrs("avg_pool2d", _window((16, 16), (1, 1), ((1, 1), (0, 0)))):
            _check("avg_pool2d", (x,), attrs)
            _check("pool", (x,), {**attrs, "dilation": (1, 1), "largest": False})


def _with_nan(shape):
    x = _values(shape, np.dtype(np.float32))
    x[..., ::3, 1] = -np.inf
    x[0, 0] = -np.inf
    x[0, 1, 2:, 2:] = np.nan
    x[-1, -1, 1, 1] = np.inf
    return x


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_nan_and_infinities(dtype):
    for shape, window in PLANES[:5]:
        x = _with_nan(shape if shape[:2] != (1, 2) else (2, *shape[1:])).astype(dtype)
        _check("max_pool2d", (x,), window)
        _check("max_pool2d_backward", (_cotangent(x, window), x), window)
        wide = {**window, "dilation": (1, 1)}
        _check("max_pool_indices", (x,), {**wide, "columns_first": True})
        _check("max_pool_indices", (x,), {**wide, "columns_first": False})
        for attrs in _attrs("avg_pool2d", window)[: dtype == np.float32]:
            _check("avg_pool2d", (x,), attrs)


def test_windows_with_gaps_that_hold_nothing():
    x = np.array([[[3, -1]], [[-np.inf, 5]]], np.float32)
    for dtype in (np.float32, np.int32):
        values = np.nan_to_num(x, neginf=-7).astype(dtype) if dtype == np.int32 else x
        window = {"kernel": (2,), "stride": (1,), "padding": ((2, 2),), "dilation": (3,)}
        _check("pool", (values,), {**window, "largest": True, "count_include_pad": False})
        _check("pool", (values,), {**window, "largest": False, "count_include_pad": True})
        _check("max_pool_indices", (values,), {**window, "columns_first": False})


@pytest.mark.parametrize("channels", [1, 3, 4, 16, 24])
@pytest.mark.parametrize("op", ["max_pool2d", "avg_pool2d"])
def test_channels_last(op, channels):
    for dtype in map(np.dtype, (np.float32, np.int8, np.float16)):
        for (n, _, *size), window in PLANES[:4] if dtype == np.float32 else PLANES[:1]:
            x = _values((n, channels, *size), dtype)
            for attrs in _attrs(op, window):
                problem = problem_of(op, (x,), attrs)
                with installed(EmulatedGpu()) as gpu:
                    found = pooling.pool_last(problem, gpu.upload(x.transpose(0, 2, 3, 1))).numpy()
                rows = on_gpu(op, (x,), attrs)[0]
                np.testing.assert_array_equal(np.ascontiguousarray(found.transpose(0, 3, 1, 2)), rows)


def test_many_planes_and_places():
    x = _values((3, 700, 2, 2), np.dtype(np.float32))
    window = _window((2, 2), (1, 1), ((1, 1), (0, 0)))
    _check("max_pool2d", (x,), window)
    _check("max_pool2d_backward", (_cotangent(x, window), x), window)
    _check("max_pool2d", (_values((1, 1, 40, 70), np.dtype(np.float32)),), window)


def test_windows_of_many_taps_are_numbered_by_words():
    for kernel in ((15, 17), (16, 16)):
        x = _values((1, 2, 20, 19), np.dtype(np.float32))
        window = _window(kernel, (1, 1))
        _check("max_pool2d_backward", (_cotangent(x, window), x), window)


def test_what_no_kernel_takes():
    x = np.zeros((1, 1, *(2,) * 4), np.float32)
    four = {"kernel": (1,) * 4, "stride": (1,) * 4, "padding": ((0, 0),) * 4, "dilation": (1,) * 4}
    problem = problem_of("pool", (x,), {**four, "largest": True, "count_include_pad": False})
    assert dict(family("pool").explain(problem))["cuda_pool"] == "windows of 4 axes; at most 3"
    problem = problem_of("max_pool2d", (np.zeros((1, 1, 2, 2), bool),), _window((2, 2)))
    assert dict(family("max_pool2d").explain(problem))["cuda_max_pool2d"] == "pooling of bool"
