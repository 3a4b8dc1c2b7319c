"""`copy`, where MegEngine has it too, and checks of its tests."""

from __future__ import annotations

import numpy as np

from megengine.core.errors import OptionError
from megengine.functional.tensor import copy  # pyright: ignore[reportAttributeAccessIssue]
from megengine.tensor import Tensor

__all__ = ["copy"]


def _assert_equal(expect: Tensor, actual: Tensor, *, maxerr: float = 1e-4, verbose: bool = False) -> Tensor:
    """`actual`, if it agrees with `expect`; the error is relative to the larger value, or absolute below 1.

    Raises OptionError, which is an AssertionError.
    """
    want, got = (np.asarray(t.numpy(), np.float64) for t in (expect, actual))
    if want.shape != got.shape:
        raise OptionError(f"assert_equal: shapes are {want.shape} and {got.shape}")
    error = np.abs(want - got) / np.maximum(1, np.maximum(np.abs(want), np.abs(got)))
    if error.size and not error.max() <= maxerr:
        raise OptionError(f"assert_equal: values differ by {error.max():.3g}; expected at most {maxerr}")
    return actual


def _sync() -> None:
    """Nothing to wait for: values exist when a call returns."""
