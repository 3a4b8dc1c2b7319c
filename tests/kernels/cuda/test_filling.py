"""Tensors of one value on the emulated GPU."""

import numpy as np
import pytest
from emulated_gpu import EmulatedGpu

import megengine.functional as F
from megengine.kernels.cuda.runtime import installed


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool"])
@pytest.mark.parametrize("value", [0, 1, 7])
@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (2, 300)])
def test_full(dtype, value, shape):
    with installed(EmulatedGpu()):
        found = F.full(shape, value, dtype=dtype, device="gpu0")
        assert found.device == "gpu0"
        wanted = F.full(shape, value, dtype=dtype)
        assert found.dtype == wanted.dtype
        assert found.numpy().tobytes() == wanted.numpy().tobytes()
        assert F.full_like(found, value).numpy().tobytes() == wanted.numpy().tobytes()


@pytest.mark.parametrize("value", [-0.0, np.nan, np.inf, 1e-45])
def test_bits_of_floats(value):
    with installed(EmulatedGpu()):
        found = F.full((3,), value, device="gpu0").numpy()
    assert found.tobytes() == np.full(3, value, np.float32).tobytes()
