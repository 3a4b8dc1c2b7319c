"""The CUDA kernels of every op, best first: the tables of all modules of this package, in the order of their names.

A module states its kernels as `KERNELS`, and as `LAST` kernels of plans: every operand with four axes that is no
constant, and every such result, is an array [N,H,W,C]. The modules are imported when kernels are first asked for.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping

from megengine.core import late
from megengine.kernels.kernel import Kernel

_PACKAGE = __name__.rpartition(".")[0]


def _joined(table: str) -> dict[str, tuple[Kernel, ...]]:
    joined: dict[str, tuple[Kernel, ...]] = {}
    for name in sorted(late.parts(_PACKAGE)):
        found: Mapping[str, tuple[Kernel, ...]] = getattr(importlib.import_module(f"{_PACKAGE}.{name}"), table, {})
        for op, kernels in found.items():
            joined[op] = (*joined.get(op, ()), *kernels)
    return joined


@functools.cache
def cuda_lists() -> Mapping[str, tuple[Kernel, ...]]:
    """The kernels of every op."""
    return _joined("KERNELS")


@functools.cache
def cuda_last() -> Mapping[str, tuple[Kernel, ...]]:
    """The kernels of plans that take values channels-last, of every op that has one."""
    return _joined("LAST")
