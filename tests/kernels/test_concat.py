"""Concatenation along the last axis in memory, by several threads."""

import numpy as np
import pytest

from megengine.kernels import _core


@pytest.mark.parametrize("rows", [1, 7, 4000])
@pytest.mark.parametrize("threads", [1, 2, 3, 64])
def test_threads_take_rows(rows, threads):
    """Results behind the last row stay as they are."""
    rng = np.random.default_rng(rows)
    parts = [rng.integers(0, 255, (rows, width), np.uint8) for width in (1, 40, 0, 64)]
    out = np.full((rows + 1, 105), 7, np.uint8)
    _core.run_step(_core.concat_step(rows, [p.shape[1] for p in parts], threads), [*parts, out[:rows]])
    np.testing.assert_array_equal(out[:rows], np.concatenate(parts, 1))
    assert (out[rows] == 7).all()
