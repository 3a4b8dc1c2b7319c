"""MegEngine's path of `trace`: functions run as they are written, so nothing is ever traced."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from megengine.core import absent
from megengine.jit import TraceError as TraceError
from megengine.jit import exclude_from_trace as exclude_from_trace
from megengine.jit import partial_trace as partial_trace
from megengine.jit import trace as trace
from megengine.jit.options import DTRConfig as DTRConfig
from megengine.jit.options import GraphOptimizationConfig as GraphOptimizationConfig
from megengine.jit.options import SublinearMemoryConfig as SublinearMemoryConfig
from megengine.tensor import Tensor as Tensor
from megengine.tensor import tensor as tensor
from megengine.utils.network import set_symbolic_shape as set_symbolic_shape

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


__getattr__ = partial(absent.refuse, __name__)
