"""Arrays of random numbers from a key: native, or by the NumPy reference, with the same bits."""

from __future__ import annotations

import numpy as np

from megengine.kernels import _core
from megengine.kernels.reference import philox
from megengine.kernels.registry import forced


def random_array(key: int, shape: tuple[int, ...], *, normal: bool, scale: float, shift: float) -> np.ndarray:
    """float32 numbers x * scale + shift; x is standard normal, or uniform in [0, 1). The key has 64 bits."""
    out = np.empty(shape, np.float32)
    if "reference" in forced():
        drawn = (philox.normal if normal else philox.uniform)(key, out.size).reshape(shape)
        return drawn * np.float32(scale) + np.float32(shift)
    _core.random_fill(key, out, normal, float(scale), float(shift))
    return out
