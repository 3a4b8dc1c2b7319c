"""Pictures in other sizes, on the emulated GPU, beside NumPy: equal bits."""

import numpy as np
import pytest
from cuda_checks import by_reference, narrowed, on_gpu, parts, problem_of, same
from emulated_gpu import EmulatedGpu

from megengine.core.dtype import bfloat16, quantized
from megengine.dispatch import get_op
from megengine.kernels.cuda import resizing
from megengine.kernels.cuda.runtime import installed
from megengine.tensor import Tensor


def numbers(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def check(op, inputs, **attrs):
    same(on_gpu(op, inputs, attrs), by_reference(op, inputs, attrs))


@pytest.mark.parametrize("op", resizing.KERNELS)
def test_samples(op):
    for sample in get_op(op).samples():
        for inputs in ([narrowed(x) for x in sample.inputs], sample.inputs):
            same(on_gpu(op, inputs, sample.attrs), by_reference(op, inputs, sample.attrs))


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("lengths, size", [((7,), (3,)), ((5, 9), (11, 4)), ((3, 4, 2), (5, 2, 7)), ((1, 1), (3, 1))])
def test_one_to_three_axes(mode, lengths, size):
    for corners in (False, True) if mode == "linear" else (False,):
        attrs = {"size": size, "mode": mode, "corners": corners}
        check("resize", (numbers(2, 3, *lengths),), **attrs)
        check("resize_backward", (numbers(2, 3, *lengths),), **attrs)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16])
def test_halves_are_rounded_once(dtype):
    x, attrs = numbers(1, 2, 5, 6).astype(dtype), {"size": (9, 4), "mode": "cubic", "corners": False}
    (want,) = by_reference("resize", (x.astype(np.float32),), attrs)
    same(on_gpu("resize", (x,), attrs), [want.astype(dtype)])


@pytest.mark.parametrize("name, zero", [("qint8", 3), ("quint8", 128), ("qint8_narrow", 0)])
def test_integers_on_their_own_scale(name, zero):
    dtype = quantized(name, 0.5, zero)
    values = np.random.default_rng(0).integers(dtype.qmin, dtype.qmax + 1, (2, 2, 6, 5)).astype(dtype.storage)
    values[0, 0, :2] = dtype.qmax  # a cubic sum beyond the range
    x = Tensor._wrap(values, dtype)
    for mode in ("linear", "nearest", "cubic"):
        check("resize", (x,), size=(12, 10), mode=mode, corners=False)
        check("resize", (x,), size=(3, 7), mode=mode, corners=False)
    # sums that are halves of a step: twice the size in the middle of two neighbours
    steps = Tensor._wrap((np.arange(8) * 3 - 9 + zero).astype(dtype.storage).reshape(1, 1, 8), dtype)
    check("resize", (steps,), size=(15,), mode="linear", corners=True)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_channels_last(mode):
    attrs = {"size": (7, 3), "mode": mode, "corners": False}
    values = np.random.default_rng(0).integers(0, 256, (2, 5, 4, 6)).astype(np.uint8)
    for x in (Tensor._wrap(values, quantized("quint8", 0.5, 7)), numbers(2, 5, 4, 6).astype(np.float16)):
        problem, (wanted,) = problem_of("resize", (x,), attrs), on_gpu("resize", (x,), attrs)
        (kernel,) = resizing.LAST["resize"]
        assert kernel.usable(problem) is None
        with installed(EmulatedGpu()) as gpu:
            rows = np.ascontiguousarray(parts(x)[0].transpose(0, 2, 3, 1))
            found = kernel.run(problem, gpu.upload(rows)).numpy()
        same((found.transpose(0, 3, 1, 2),), (wanted,))
    line = problem_of("resize", (numbers(2, 5, 4),), {**attrs, "size": (7,)})
    assert kernel.usable(line) == "1 axis in rows"
