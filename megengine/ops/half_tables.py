"""Numbers that a table gives for those of 16 bits of a tensor: what plans make of elementwise ops on one of them."""

from __future__ import annotations

import numpy as np

from megengine.core.errors import DTypeError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import ErrorSample, Sample, define, no_onnx, not_differentiable
from megengine.kernels.half_conversion import HALVES
from megengine.ops.common import lift_plain, noise

ENTRIES = 1 << 16
RESULTS = HALVES | {np.dtype(np.float32)}


def _infer(x: TensorSpec, table: TensorSpec, *, dtype: np.dtype) -> TensorSpec:
    if dtype not in HALVES or x.dtype != dtype or table.dtype not in RESULTS:
        raise DTypeError(f"half_table: got {x.dtype}, and a table of {table.dtype} for {dtype}; expected halves")
    if table.shape != (ENTRIES,):
        raise ShapeError(f"half_table: the table has shape {table.shape}; expected ({ENTRIES},)")
    return TensorSpec(x.shape, table.dtype, x.device)


def _reference(x: np.ndarray, table: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return table[np.asarray(x, dtype, order="C").view(np.uint16)]


_OF_FLOAT16 = {"dtype": np.dtype(np.float16)}


def _halves(*shape: int) -> np.ndarray:
    return noise(*shape).astype(np.float16)


def _squares() -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.square(np.arange(ENTRIES, dtype=np.uint16).view(np.float16))


define(
    "half_table",
    _infer,
    _reference,
    not_differentiable("a table is made by passes for inference; differentiate the unfused graph"),
    no_onnx("exported before fusion"),
    lambda: [
        Sample((_halves(2, 3, 4, 5), _squares()), _OF_FLOAT16, False),
        Sample((_halves(7, 3), _squares().astype(np.float32)), _OF_FLOAT16, False),
    ],
    lambda: [
        ErrorSample((noise(3), _squares()), _OF_FLOAT16, DTypeError, "half_table: got float64, .* expected halves"),
        ErrorSample((_halves(3), _halves(4)), _OF_FLOAT16, ShapeError, r"half_table: the table has shape \(4,\)"),
    ],
    by_type=True,
    lift=lift_plain,
)
