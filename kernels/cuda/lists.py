"""The CUDA kernels of every op, best first: the tables of the families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from megengine.kernels.cuda import (
    batch_norms,
    control,
    convolution,
    elementwise,
    indexing,
    int_layers,
    int_pointwise,
    int_products,
    int_recurrent,
    int_rows,
    int_windows,
    matrices,
    moves,
    pooling,
    products,
    recurrent,
    reduction,
    regions,
    resizing,
    row_norms,
    softmax,
    sorting,
)
from megengine.kernels.kernel import Kernel

_FAMILIES = (
    batch_norms,
    control,
    convolution,
    elementwise,
    indexing,
    int_layers,
    int_pointwise,
    int_products,
    int_recurrent,
    int_rows,
    int_windows,
    matrices,
    moves,
    pooling,
    products,
    recurrent,
    reduction,
    regions,
    resizing,
    row_norms,
    softmax,
    sorting,
)


def _joined(tables: Iterable[Mapping[str, tuple[Kernel, ...]]]) -> dict[str, tuple[Kernel, ...]]:
    joined: dict[str, tuple[Kernel, ...]] = {}
    for table in tables:
        for op, kernels in table.items():
            joined[op] = (*joined.get(op, ()), *kernels)
    return joined


CUDA_LISTS = _joined(getattr(family, "KERNELS", {}) for family in _FAMILIES)
# Kernels of plans: every operand with four axes that is no constant, and every such result, is an array [N,H,W,C].
CUDA_LAST = _joined(getattr(family, "LAST", {}) for family in _FAMILIES)
