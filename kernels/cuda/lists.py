"""The CUDA kernels of every op, best first: the tables of the families."""

from __future__ import annotations

from megengine.kernels.cuda import (
    batch_norms,
    control,
    convolution,
    elementwise,
    indexing,
    int_layers,
    int_pointwise,
    int_recurrent,
    int_rows,
    matrices,
    moves,
    products,
    reduction,
    regions,
    resizing,
    row_norms,
    softmax,
    sorting,
)
from megengine.kernels.kernel import Kernel

_FAMILIES: tuple[dict[str, tuple[Kernel, ...]], ...] = (
    batch_norms.KERNELS,
    control.KERNELS,
    convolution.KERNELS,
    elementwise.KERNELS,
    indexing.KERNELS,
    int_layers.KERNELS,
    int_pointwise.KERNELS,
    int_recurrent.KERNELS,
    int_rows.KERNELS,
    matrices.KERNELS,
    moves.KERNELS,
    products.KERNELS,
    reduction.KERNELS,
    regions.KERNELS,
    resizing.KERNELS,
    row_norms.KERNELS,
    softmax.KERNELS,
    sorting.KERNELS,
)


def _joined(families: tuple[dict[str, tuple[Kernel, ...]], ...]) -> dict[str, tuple[Kernel, ...]]:
    joined: dict[str, tuple[Kernel, ...]] = {}
    for family in families:
        assert not joined.keys() & family.keys(), f"two families hold {joined.keys() & family.keys()}"
        joined.update(family)
    return joined


CUDA_LISTS = _joined(_FAMILIES)
# Kernels of plans: every operand with four axes that is no constant, and every such result, is an array [N,H,W,C].
CUDA_LAST: dict[str, tuple[EagerKernel, ...]] = {**int_layers.LAST}
