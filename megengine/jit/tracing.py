"""MegEngine's path of `trace`: functions run as they are written, so nothing is ever traced."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from megengine import jit
from megengine.core import absent
from megengine.jit import *  # noqa: F403
from megengine.jit import trace
from megengine.tensor import Tensor, tensor
from megengine.utils.network import set_symbolic_shape

active_trace: trace | None = None

skip_tracing = False


def is_tracing() -> bool:
    """False."""
    return False


def is_profiling() -> bool:
    """False."""
    return False


def array_comparator(lhs: Any, rhs: Any) -> bool:
    """Whether two arrays hold the same values."""
    return bool(np.all(lhs == rhs))


__getattr__ = partial(absent.part_or_error, __name__)
__all__ = [*jit.__all__, "Tensor", "active_trace", "array_comparator", "is_profiling", "is_tracing"]
__all__ += ["set_symbolic_shape", "skip_tracing", "tensor"]
