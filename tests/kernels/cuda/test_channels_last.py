"""Channels-last kernels of plans: the numbers of the op's reference on turned arrays."""

import numpy as np
import pytest
from cuda_checks import by_reference, problem_of
from emulated_gpu import EmulatedGpu

from megengine.core.dtype import bfloat16
from megengine.kernels.cuda.channels_last import LAST, pool_last
from megengine.kernels.cuda.runtime import installed

HALVES = (np.dtype(np.float16), bfloat16)


def values(*shape, dtype=np.float32):
    """Whole numbers, whose sums are exact in every order."""
    return np.random.default_rng([*shape]).integers(-3, 4, shape).astype(dtype)


def on_last(kernel, op, inputs, attrs, turned):
    """The result of a kernel whose operands of these numbers lie channels-last, in rows."""
    problem = problem_of(op, inputs, attrs)
    with installed(EmulatedGpu()) as gpu:
        moved = [x.transpose(0, 2, 3, 1) if i in turned else x for i, x in enumerate(inputs)]
        out = kernel(problem, *map(gpu.upload, map(np.ascontiguousarray, moved))).numpy()
    return out.transpose(0, 3, 1, 2)


def pool(window=(3, 3), stride=(2, 2), padding=((1, 1), (1, 1)), **more):
    return {"kernel": window, "stride": stride, "padding": padding, **more}


@pytest.mark.parametrize("dtype", (*HALVES, np.dtype(np.float32)), ids=str)
@pytest.mark.parametrize("channels", (1, 2, 3, 8, 16))
@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("max_pool2d", pool()),
        ("max_pool2d", pool((3, 2), (1, 2), ((0, 1), (1, 0)))),
        ("avg_pool2d", pool(count_include_pad=True)),
        ("avg_pool2d", pool(count_include_pad=False)),
        ("avg_pool2d", pool((5, 6), (1, 1), ((0, 0), (0, 0)), count_include_pad=True)),
    ],
)
def test_pools(op, attrs, channels, dtype):
    x = values(2, channels, 5, 6, dtype=dtype)
    found = on_last(pool_last, op, (x,), attrs, {0})
    wanted = by_reference(op, (x.astype(np.float32),), attrs)[0].astype(dtype)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_nan_is_the_largest():
    x = values(1, 8, 4, 4, dtype=np.float16)
    x[0, 3, 1, 1] = np.nan
    found = on_last(pool_last, "max_pool2d", (x,), pool(), {0})
    np.testing.assert_array_equal(np.isnan(found), np.isnan(by_reference("max_pool2d", (x,), pool())[0]))


GEOMETRY = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(
    ("channels", "more"), [(3, {}), (16, {}), (16, {"groups": 16}), (16, {"groups": 2, "stride": (2, 2)})], ids=str
)
@pytest.mark.parametrize("residual", (False, True))
def test_fused_convolutions(channels, more, residual, dtype):
    attrs = {**GEOMETRY, **more, "activation": "relu"}
    x, w = values(2, channels, 6, 5, dtype=dtype), values(16, channels // attrs["groups"], 3, 3, dtype=dtype)
    b = values(16, dtype=dtype)
    inputs = [x, w, b]
    if residual:
        shape = by_reference("fused_conv2d", [a.astype(np.float32) for a in inputs], attrs)[0].shape
        inputs.append(values(*shape, dtype=dtype))
    (kernel,) = LAST["fused_conv2d"]
    assert kernel.usable(problem_of("fused_conv2d", inputs, attrs)) is None
    found = on_last(kernel.run, "fused_conv2d", inputs, attrs, {0, 3})
    wanted = by_reference("fused_conv2d", [a.astype(np.float32) for a in inputs], attrs)[0].astype(dtype)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


def test_float32_is_computed_in_rows():
    x, w = values(1, 3, 4, 4), values(4, 3, 3, 3)
    (kernel,) = LAST["conv2d"]
    assert kernel.usable(problem_of("conv2d", (x, w), GEOMETRY)) == "float32 is computed in rows"
