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
