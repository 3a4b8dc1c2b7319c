"""Channels-last arrays on the emulated GPU."""

import numpy as np
import pytest
from emulated_gpu import ORDERS, EmulatedGpu

from megengine.kernels.cuda.int_layout import to_first, to_last, wider

SHAPES = [
    (2, 3, 5, 7),
    (1, 9, 33, 1),
    (2, 8, 4, 4),
    (1, 40, 6, 6),
    (3, 1, 2, 2),
    (2, 70, 1, 1),
    (0, 3, 2, 2),
    (1, 32, 32, 1),
    (3, 3, 4, 6),
    (2, 2, 2, 2),
    (2, 4, 1, 8),
]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.float32])
def test_layouts(dtype, order):
    gpu = EmulatedGpu(order=order)
    for shape in SHAPES:
        x = np.random.default_rng(shape).integers(-100, 100, shape).astype(dtype)
        last = to_last(gpu.upload(x))
        np.testing.assert_array_equal(gpu.download(last), x.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(gpu.download(to_first(last)), x)
        c = shape[1]
        for pitch in (c + 1, c + 5):
            want = np.pad(x.transpose(0, 2, 3, 1), ((0, 0),) * 3 + ((0, pitch - c),), constant_values=7)
            np.testing.assert_array_equal(gpu.download(to_last(gpu.upload(x), pitch, 7)), want)
            want[..., c:] = 0
            np.testing.assert_array_equal(gpu.download(wider(last, pitch)), want)


def test_pictures_are_turned_by_pixels():
    gpu = EmulatedGpu()
    to_last(gpu.upload(np.zeros((2, 3, 4, 4), np.uint8)))
    to_last(gpu.upload(np.zeros((2, 16, 4, 4), np.uint8)))
    to_last(gpu.upload(np.zeros((2, 3, 4, 4), np.uint8)), 4)
    assert [kernel for _, kernel in gpu.launched] == ["cuda_turn_few", "cuda_turn", "cuda_turn_fours"]


def test_parts_of_arrays_are_turned_at_any_address():
    gpu = EmulatedGpu()
    values = np.arange(1 + 2 * 3 * 16, dtype=np.uint8)
    whole = gpu.upload(values)
    part = type(whole)(gpu, whole.owner, whole.address + 1, (2, 3, 4, 4), whole.dtype)
    want = np.pad(values[1:].reshape(2, 3, 4, 4).transpose(0, 2, 3, 1), ((0, 0),) * 3 + ((0, 1),), constant_values=9)
    np.testing.assert_array_equal(gpu.download(to_last(part, 4, 9)), want)
