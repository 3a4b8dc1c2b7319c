"""Rounding of a layer's sums and its gradient: the native kernels of every instruction set, against NumPy."""

import numpy as np
import pytest

from megengine.kernels import isa
from megengine.kernels.rounding import round_sums, round_sums_backward

SHAPES = [(1, 1), (3, 15), (64, 16), (65, 17), (200, 33), (0, 4)]


def sums(shape, seed=0):
    """Values on both sides of the bounds, halves among them."""
    rng = np.random.default_rng(seed)
    t = rng.normal(0, 150, shape).astype(np.float32)
    return np.where(rng.random(shape) < 0.3, np.floor(t) + np.float32(0.5), t).astype(np.float32)


def each_level(monkeypatch, call):
    """The results by NumPy, then those of every level."""
    monkeypatch.setenv("MEGENGINE_FORCE_KERNEL", "reference")
    wanted = call()
    monkeypatch.delenv("MEGENGINE_FORCE_KERNEL")
    for level in isa.available():
        with isa.capped(level):
            yield wanted, call()


@pytest.mark.parametrize("residual", [None, np.uint8, np.int8])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rounded_sums_are_numpys(shape, residual, monkeypatch):
    t, other = sums(shape), None
    if residual is not None:
        other = np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8).view(residual)
    u8, s8 = np.dtype(np.uint8), np.dtype(np.int8)
    for ends in (((0, 255), 0, u8), ((-128, 127), 128, u8), ((-128, 127), 0, s8), ((0, 118), 0, u8)):
        for wanted, got in each_level(monkeypatch, lambda: round_sums(t, other, 3, 0.40625, *ends)):  # noqa: B023
            for ours, theirs in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("rounding", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients_are_numpys(shape, rounding, monkeypatch):
    t, ct = sums(shape), np.random.default_rng(2).normal(size=shape).astype(np.float32)
    call = lambda: round_sums_backward(ct, t, (-128, 127), (-128.0, 127.0), rounding=rounding)  # noqa: E731
    for (passed, channels, total), (ours, by_channel, whole) in each_level(monkeypatch, call):
        np.testing.assert_array_equal(ours, passed)
        np.testing.assert_allclose(by_channel, channels, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(whole, total, rtol=1e-5, atol=0.05)
