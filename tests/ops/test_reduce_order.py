"""Float sums are the same for every layout in memory."""

import numpy as np
import pytest

import megengine.functional as F
from megengine.dispatch import registry


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("axis", [(2, 3), (1,), (0, 1, 2, 3)])
def test_channels_last_gives_the_same_bits(op, axis):
    x = np.random.default_rng(0).standard_normal((2, 16, 16, 16)).astype(np.float32)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert last.strides != x.strides
    wanted = registry[op].reference(x, axis=axis, keepdims=False)
    np.testing.assert_array_equal(registry[op].reference(last, axis=axis, keepdims=False), wanted)
    np.testing.assert_array_equal(getattr(F, op)(x, axis).numpy(), wanted)
