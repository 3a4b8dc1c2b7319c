"""Random numbers on the emulated GPU are those of the processor."""

import numpy as np
import pytest
from emulated_gpu import ORDERS, EmulatedGpu

import megengine as mge
import megengine.functional as F
from megengine import random
from megengine.kernels.cuda import random as gpu_random
from megengine.kernels.cuda.runtime import installed
from megengine.kernels.reference import philox
from megengine.module import init

KEY = 0xFEDCBA9876543210


@pytest.fixture
def gpu():
    with installed(EmulatedGpu()) as runtime:
        yield runtime


@pytest.mark.parametrize("count", [0, 1, 63, 64, 255, 256, 257, 1000])
@pytest.mark.parametrize("normal", [False, True])
def test_numbers_are_the_reference(count, normal, gpu):
    made = gpu_random.random_array(lambda: KEY, (count,), normal=normal, scale=1.0, shift=0.0, device="gpu0")
    np.testing.assert_array_equal(made.numpy(), (philox.normal if normal else philox.uniform)(KEY, count))


@pytest.mark.parametrize("order", ORDERS)
def test_order_of_threads(order):
    with installed(EmulatedGpu(order=order)):
        made = gpu_random.random_array(lambda: 1, (700,), normal=True, scale=2.0, shift=0.5, device="gpu0")
    np.testing.assert_array_equal(made.numpy(), philox.normal(1, 700) * np.float32(2) + np.float32(0.5))


@pytest.mark.parametrize("size", [(3, 4), (200, 300)])
@pytest.mark.parametrize(
    "draw", [lambda s, d: random.RNG(7, d).normal(1, 2, s), lambda s, d: random.RNG(7, d).uniform(-1, 3, s)]
)
def test_generators_give_the_same_on_every_device(draw, size, gpu):
    found = draw(size, "gpu0")
    assert found.device == "gpu0"
    np.testing.assert_array_equal(found.numpy(), draw(size, "cpu0").numpy())
    assert len(gpu.launched) == (size != (3, 4))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(5, 7), (190, 180)])
def test_dropout(dtype, shape, gpu):
    values = []
    for device in ("cpu0", "gpu0"):
        random.seed(3)
        x = mge.Tensor(np.ones(shape, np.float32), dtype=dtype, device=device)
        values.append(F.dropout(x, 0.3).numpy().astype(np.float64))
    np.testing.assert_array_equal(*values)
    assert 0.6 < (values[0] != 0).mean() < 0.8


def test_dropout_of_integers_stays(gpu):
    assert F.dropout(mge.Tensor(np.ones(9, np.int32)), 0.5).dtype == np.int32


@pytest.mark.parametrize("fill", [init.normal_, init.uniform_, init.msra_normal_, init.ones_])
def test_initial_values(fill, gpu):
    values = []
    for device in ("cpu0", "gpu0"):
        random.seed(5)
        p = mge.Parameter(np.zeros((200, 180), np.float32), device=device)
        fill(p)
        values.append(p.numpy())
        assert p.device == device
    np.testing.assert_array_equal(*values)
