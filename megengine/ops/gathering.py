"""Elements taken by given indices: along one axis, rows of a table, and marks of classes."""

from __future__ import annotations

import numpy as np

from megengine.core.dtype import is_float
from megengine.core.errors import IndexOutOfRangeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import ONNX_WRITER, Sample, apply, define, not_differentiable, public
from megengine.kernels.cuda.placing import on_gpu, positions
from megengine.ops.common import BOOL, INT32, as_tensor, cast, normalize_axis
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"


def _one_hot_infer(x: TensorSpec, *, depth: int) -> TensorSpec:
    if depth < 1:
        raise OptionError(f"one_hot: depth is {depth}; expected at least 1")
    return TensorSpec((*x.shape, depth), INT32, x.device)


def _one_hot(x: np.ndarray, depth: int) -> np.ndarray:
    if x.size and (x.min() < 0 or x.max() >= depth):
        worst = x.max() if x.max() >= depth else x.min()
        raise IndexOutOfRangeError(f"one_hot: index {worst} is out of range for {counted(depth, 'class')}")
    return (x[..., None] == np.arange(depth)).astype(np.int32)


define(
    "one_hot",
    _one_hot_infer,
    _one_hot,
    not_differentiable("the input is an index"),
    ONNX_WRITER,
    lambda: [Sample((np.array([[0, 2], [1, 1]], np.int32),), {"depth": 3}, False)],
)


@public(home=_HOME, by_spec=True)
def gather(inp: TensorLike, axis: int, index: TensorLike) -> Tensor:
    """out[i][j] = inp[index[i][j]][j] for axis 0, likewise for others; index has inp's number of axes."""
    x = as_tensor(inp)
    return apply("index", x, *along_axis("gather", x, axis, as_tensor(index)), pattern=("i",) * x.ndim)


def along_axis(op: str, x: Tensor, axis: int, index: Tensor) -> list[Tensor]:
    """Indices for every axis of x: `index` along `axis`, and each element's own position along the others."""
    axis, i = normalize_axis(op, axis, x.ndim), index
    if i.ndim != x.ndim or any(a > b for k, (a, b) in enumerate(zip(i.shape, x.shape, strict=True)) if k != axis):
        expected = f"expected {counted(x.ndim, 'axis')}, none longer"
        raise ShapeError(f"{op}: index has shape {i.shape}, inp {x.shape}; {expected}")
    if on_gpu(x.spec.device):  # which keeps them: nothing waits for a copy
        shapes = [(*(1,) * k, n, *(1,) * (i.ndim - k - 1)) for k, n in enumerate(i.shape)]
        return [i if k == axis else Tensor._wrap(positions(s, x.spec.device)) for k, s in enumerate(shapes)]
    grids = np.indices(i.shape, dtype=np.int32, sparse=True)
    return [i if k == axis else Tensor._wrap(np.array(g), None, x.device) for k, g in enumerate(grids)]


@public(home="megengine.functional.nn", by_spec=True)
def indexing_one_hot(src: TensorLike, index: TensorLike, axis: int = 1, keepdims: bool = False) -> Tensor:
    """One element of `axis` per position, chosen by `index` (src's shape without the axis; floats are cut to int32)."""
    x, i = as_tensor(src), as_tensor(index)
    if is_float(i.dtype) or i.dtype == BOOL:
        i = cast(i, INT32)
    axis = normalize_axis("indexing_one_hot", axis, x.ndim)
    wide = apply("reshape", i, shape=(*i.shape[:axis], 1, *i.shape[axis:]))
    out = gather(x, axis, wide)
    return out if keepdims else apply("reshape", out, shape=i.shape)


@public(home="megengine.functional.nn", by_spec=True)
def one_hot(inp: TensorLike, num_classes: int) -> Tensor:
    """int32 rows with a single one at each index of inp."""
    return apply("one_hot", as_tensor(inp), depth=int(num_classes))


@public(home="megengine.functional.nn", by_spec=True)
def embedding(
    inp: TensorLike,
    weight: TensorLike,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float | None = None,
) -> Tensor:
    """Rows of weight [V, D] for each index of inp [...]: [..., D].

    The row `padding_idx` (from the end if negative) gets no gradient. Raises OptionError for max_norm and norm_type,
    which MegEngine refuses too, and IndexOutOfRangeError for a padding_idx that is no row.
    """
    if max_norm is not None or norm_type is not None:
        raise OptionError("embedding: max_norm and norm_type are not supported; use F.normalize on the weight")
    w, index = as_tensor(weight), as_tensor(inp)
    rows = apply("index", w, index, pattern=("i", (None, None, None)))
    if padding_idx is None:
        return rows
    count = w.shape[0]
    if not -count <= padding_idx < count:
        raise IndexOutOfRangeError(f"embedding: padding_idx is {padding_idx}; expected a row of {count}")
    padding = padding_idx % max(count, 1)
    same = [apply("equal", index, as_tensor(row, like=index)) for row in (padding, padding - count)]
    is_padding = apply("logical_or", *same)
    mask = apply("reshape", is_padding, shape=(*index.shape, 1))
    return apply("where", apply("broadcast_to", mask, shape=rows.shape), rows.detach(), rows)
