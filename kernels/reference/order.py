"""The order of elements in memory, which rounding follows: NumPy and BLAS add in the order of the strides."""

from __future__ import annotations

import numpy as np


def in_order(x: np.ndarray) -> np.ndarray:
    """The values C-contiguous: what is summed up of them is the same for every layout they come in."""
    return x if x.flags.c_contiguous else np.ascontiguousarray(x)
