"""Kernels of training at every instruction set: near the float64 reference, the same bits everywhere, bounds kept."""

import gc

import numpy as np
import pytest

import megengine.functional  # noqa: F401
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op, infer
from megengine.kernels import _core, isa, memory
from megengine.kernels.native import to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family

GUARD = 16


def random(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def guarded(shape):
    memory_ = np.full(int(np.prod(shape)) + 2 * GUARD, 77, np.float32)
    return memory_, memory_[GUARD:-GUARD].reshape(shape)


def untouched(*memories):
    return all((m[:GUARD] == 77).all() and (m[-GUARD:] == 77).all() for m in memories)


def same_at_every_level(run):
    """What `run()` gives at the highest level, after comparing all of them."""
    results = []
    for level in isa.available():
        with isa.capped(level):
            results.append(run())
    for other in results[:-1]:
        for a, b in zip(other, results[-1], strict=True):
            np.testing.assert_array_equal(a, b)
    return results[-1]


@pytest.mark.parametrize("rows", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("channels", [1, 7, 8, 16, 17])
def test_batch_norm(rows, channels):
    x, scale, bias = random(rows, channels) * 3 + 100, random(channels, seed=1), random(channels, seed=2)

    def run():
        memories, outs = zip(*map(guarded, [(rows, channels), (channels,), (channels,)]), strict=True)
        _core.batch_norm(x, scale, bias, 1e-5, *outs)
        assert untouched(*memories)
        return outs

    wide = [a.astype(np.float64) for a in (x, scale, bias)]
    for got, want in zip(same_at_every_level(run), get_op("batch_norm_training").reference(*wide, 1e-5), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("rows", [2, 63, 64, 65, 200])
@pytest.mark.parametrize("channels", [1, 7, 8, 16, 17])
def test_gradient_of_batch_norm(rows, channels):
    x, ct = random(rows, channels), random(rows, channels, seed=3)
    scale, mean, var = random(channels, seed=1), random(channels, seed=2) * 0.1, np.abs(random(channels, seed=4)) + 0.5
    arrays = [x, ct, scale, mean, var]

    def run():
        memories, outs = zip(*map(guarded, [(rows, channels), (channels,), (channels,)]), strict=True)
        _core.batch_norm_backward(*arrays, 1e-5, *outs)
        assert untouched(*memories)
        return outs

    wide = [a.astype(np.float64) for a in arrays]
    wanted = get_op("batch_norm_training_backward").reference(*wide, 1e-5)
    for got, want in zip(same_at_every_level(run), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("size", [1, 7, 8, 16, 33])
def test_gradient_of_relu(size):
    ct, y = random(size), random(size, seed=1)
    y[0] = 0

    def run():
        memory_, out = guarded((size,))
        _core.relu_backward(ct, y, out)
        assert untouched(memory_)
        return [out]

    np.testing.assert_array_equal(same_at_every_level(run)[0], np.where(y > 0, ct, 0))


@pytest.mark.parametrize("orders", ["same", "different", "gaps"])
def test_gradient_of_relu_in_other_orders(orders):
    y, ct = (random(2, 4, 5, 6, seed=i).transpose(0, 3, 1, 2) for i in (0, 1))
    if orders == "different":
        ct = np.ascontiguousarray(ct)
    if orders == "gaps":
        y, ct = y[:, ::2], ct[:, ::2]
    specs = [TensorSpec(a.shape, a.dtype) for a in (ct, y)]
    kernel = family("relu_backward").kernels[0]
    got = kernel.run(Problem("relu_backward", specs, [specs[0]], {}), ct, y)
    np.testing.assert_array_equal(got, np.where(y > 0, ct, 0))


@pytest.mark.parametrize("channels", [1, 7, 16, 17])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        ((6, 7), (2, 2), (2, 2), ((0, 0), (0, 0))),
        ((7, 5), (3, 3), (2, 2), ((1, 1), (1, 1))),
        ((7, 5), (3, 2), (1, 2), ((0, 1), (1, 0))),
        ((3, 3), (3, 3), (1, 1), ((0, 0), (0, 0))),
    ],
)
def test_gradient_of_max_pooling(channels, size, kernel, stride, padding):
    attrs = {"kernel": kernel, "stride": stride, "padding": padding}
    x = np.round(random(2, channels, *size) * 2)  # equal values: the first takes the gradient
    out = infer("max_pool2d", [TensorSpec(x.shape, x.dtype)], attrs)
    ct = random(*out.shape, seed=1)

    def run():
        memory_, dx = guarded(to_step(x).shape)
        lengths = [*(x.shape[i] for i in (0, 2, 3, 1)), *out.shape[2:], *kernel, *stride, padding[0][0], padding[1][0]]
        _core.max_pool_backward(to_step(ct), to_step(x), dx, lengths)
        assert untouched(memory_)
        return [dx.transpose(0, 3, 1, 2)]

    want = get_op("max_pool2d_backward").reference(ct.astype(np.float64), x.astype(np.float64), **attrs)
    np.testing.assert_allclose(same_at_every_level(run)[0], want, rtol=1e-6, atol=1e-6)


# ---------------------------------------------------------------- memory


def test_large_arrays_come_back():
    memory.release()
    array = memory.empty((3, memory.LARGE), np.float32)
    assert array.flags.c_contiguous and array.flags.writeable and array.ctypes.data % 64 == 0
    place = array.ctypes.data
    array[...] = 1
    view = array[1]
    del array
    gc.collect()
    assert (view == 1).all() and _core.kept_bytes() == 0  # a view keeps the block
    del view
    assert _core.kept_bytes() >= 12 * memory.LARGE
    again = memory.empty((3, memory.LARGE), np.float32)
    assert again.ctypes.data == place
    assert memory.empty((2, 3), np.int8).base is None
    del again
    assert memory.release() >= 12 * memory.LARGE and _core.kept_bytes() == 0


def test_what_is_kept_follows_what_was_in_use_lately():
    memory.release()
    block = 8 * memory.LARGE
    arrays = [memory.empty((memory.LARGE,), np.float64) for _ in range(40)]
    most = _core.live_bytes()
    del arrays
    assert _core.kept_bytes() == 40 * block  # a loop that needs them again gets no fresh page
    large = memory.empty((20 * block,), np.int8)  # no kept block is near its size: kept ones make room
    assert 20 * block <= _core.live_bytes() and _core.live_bytes() + _core.kept_bytes() <= most * 9 / 8
    del large
    for _ in range(2 * 4096 + 1):
        memory.empty((memory.LARGE,), np.int8)
    assert _core.kept_bytes() <= 64 << 20
    memory.release()


@pytest.mark.parametrize("axes", [(0, 1, 2, 3), (0, 3, 1, 2), (2, 0, 1, 3)])
def test_empty_like_keeps_the_order(axes):
    array = np.zeros((4, 64, 64, 64), np.float32).transpose(axes)
    made = memory.empty_like(array)
    assert (made.shape, made.strides, made.dtype) == (array.shape, array.strides, array.dtype)
