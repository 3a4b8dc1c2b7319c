"""Averages of windows: native kernels and the reference add in one order, so they give the same bits."""

import numpy as np
import pytest

import megengine.functional as F
from megengine import Tensor
from megengine.dispatch import get_op
from megengine.kernels import isa


@pytest.mark.parametrize("mode", ["average", "average_count_exclude_padding"])
@pytest.mark.parametrize(("window", "stride", "padding"), [(3, 1, 1), ((2, 5), (2, 1), (0, 2)), (7, 3, 3), (1, 1, 0)])
def test_every_level_gives_the_bits_of_the_reference(window, stride, padding, mode):
    x = np.random.default_rng(0).standard_normal((2, 19, 12, 11)).astype(np.float32)
    sizes = [(n, n) if isinstance(n, int) else n for n in (window, stride, padding)]
    attrs = {"kernel": sizes[0], "stride": sizes[1], "padding": tuple((p, p) for p in sizes[2])}
    want = get_op("avg_pool2d").reference(x, **attrs, count_include_pad=mode == "average")
    assert want.dtype == np.float32
    for level in isa.available():
        with isa.capped(level):
            np.testing.assert_array_equal(F.avg_pool2d(Tensor(x), window, stride, padding, mode).numpy(), want)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "uint64", "float64", "float16"])
def test_other_types_are_averaged_too(dtype):
    x = np.arange(24).reshape(1, 1, 4, 6).astype(dtype)
    want = x.reshape(2, 2, 3, 2).astype(np.float64).mean((1, 3))
    got = F.avg_pool2d(Tensor(x), 2, 2, mode="average").numpy()
    np.testing.assert_array_equal(got[0, 0], want if x.dtype.kind == "f" else np.trunc(want))
