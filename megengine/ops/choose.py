"""Selecting and placing elements: cumulative sums, masks, scatter, diagonals, grids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import ONNX_WRITER, ErrorSample, Sample, apply, define, public
from megengine.ops.common import as_tensor, cast, choice, lift_axes, names_only_axis, normalize_axis, refuse_quantized
from megengine.ops.gathering import along_axis
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"


def _cumsum_infer(x: TensorSpec, *, axis: int, reverse: bool) -> TensorSpec:
    refuse_quantized("cumsum", x)
    normalize_axis("cumsum", axis, x.ndim)
    return x


def _cumsum(x: np.ndarray, axis: int, reverse: bool) -> np.ndarray:
    if reverse:
        return np.flip(np.cumsum(np.flip(x, axis), axis, dtype=x.dtype), axis)
    return np.cumsum(x, axis, dtype=x.dtype)


def _cumsum_samples() -> Iterator[Sample]:
    x = np.random.default_rng(0).standard_normal((3, 4))
    for axis in (0, 1, -1):
        for reverse in (False, True):
            yield Sample((x,), {"axis": axis, "reverse": reverse})
    yield Sample((np.zeros((0, 2)),), {"axis": 0, "reverse": False})


define(
    "cumsum",
    _cumsum_infer,
    _cumsum,
    lambda ctx, ct: (apply("cumsum", ct, axis=ctx.attrs["axis"], reverse=not ctx.attrs["reverse"]),),
    ONNX_WRITER,
    _cumsum_samples,
    lambda: [ErrorSample((np.zeros(3),), {"axis": 1, "reverse": False}, IndexError, "cumsum: axis 1 is out of range")],
    lift=lift_axes,
)


@public(home=_HOME, by_spec=True)
def cumsum(inp: TensorLike, axis: int) -> Tensor:
    """Sums of the elements up to each, along `axis`; inp's shape and dtype. No axes count as one."""
    x = as_tensor(inp)
    axis = axis.item() if isinstance(axis, (Tensor, np.ndarray)) and axis.size == 1 else axis
    x = apply("reshape", x, shape=(1,)) if names_only_axis(axis, x.ndim) else x
    return apply("cumsum", x, axis=normalize_axis("cumsum", axis, x.ndim), reverse=False)


@public(home=_HOME)
def scatter(inp: TensorLike, axis: int, index: TensorLike, source: TensorLike) -> Tensor:
    """A copy of inp with out[index[i][j]][j] = source[i][j] for axis 0, likewise for others.

    index (integers) and source have one shape, of inp's number of axes and nowhere longer than inp.
    """
    x, i, s = as_tensor(inp), as_tensor(index), as_tensor(source)
    if i.shape != s.shape:
        raise ShapeError(f"scatter: index has shape {i.shape}, source {s.shape}; expected one shape")
    indices = along_axis("scatter", x, axis, i)
    return apply("set_index", x, cast(s, x.dtype), *indices, pattern=("i",) * x.ndim)


def _diagonal(rows: int, columns: int, k: int, device: str) -> list[Tensor]:
    """Row and column indices of the k-th diagonal."""
    length = max(0, min(rows + min(k, 0), columns - max(k, 0)))
    at = np.arange(length, dtype=np.int32)
    return [Tensor._wrap(at - min(k, 0), None, device), Tensor._wrap(at + max(k, 0), None, device)]


@public(home=_HOME)
def diag(inp: TensorLike, k: int = 0) -> Tensor:
    """The k-th diagonal of a matrix, or the matrix whose k-th diagonal is the vector inp; k > 0 is above the main."""
    x, k = as_tensor(inp), int(k)
    if x.ndim == 1:
        n = x.size + abs(k)
        zeros = Tensor._wrap(np.zeros((n, n), storage_of(x.dtype)), x.dtype, x.device)
        return apply("set_index", zeros, x, *_diagonal(n, n, k, x.device), pattern=("i", "i"))
    if x.ndim != 2:
        raise ShapeError(f"diag: inp has shape {x.shape}; expected a vector or a matrix")
    return apply("index", x, *_diagonal(x.shape[0], x.shape[1], k, x.device), pattern=("i", "i"))


@public(home=_HOME)
def meshgrid(*inputs: Any, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Vectors spread over the grid that they span; "xy" has the second vector along axis 0, "ij" the first."""
    choice("meshgrid", "indexing", indexing, ("xy", "ij"))
    vectors = [as_tensor(v) for v in inputs]
    for k, v in enumerate(vectors):
        if v.ndim != 1:
            raise ShapeError(f"meshgrid: input {k} has shape {v.shape}; expected a vector")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = [1, 0]
    shape = tuple(vectors[k].size for k in order)
    grids = []
    for k, v in enumerate(vectors):
        at = order.index(k)
        wide = apply("reshape", v, shape=tuple(v.size if a == at else 1 for a in range(len(shape))))
        grids.append(apply("broadcast_to", wide, shape=shape))
    return tuple(grids)
