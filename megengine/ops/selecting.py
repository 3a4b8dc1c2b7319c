"""Ops whose number of results depends on values: places of true elements, different values, boxes that are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.sizes import counted_size
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import (
    ONNX_WRITER,
    ErrorSample,
    OnnxRule,
    Sample,
    apply,
    define,
    not_differentiable,
    public,
)
from megengine.ops.common import BOOL, INT32, as_tensor, floating, normalize_axis, refuse_quantized
from megengine.tensor import Tensor

_INDICES = not_differentiable("returns indices")
INT64 = np.dtype(np.int64)


def _nonzero_infer(x: TensorSpec, *, count: str = "count") -> TensorSpec:
    refuse_quantized("nonzero", x)
    return TensorSpec((x.ndim, counted_size(count)), INT64, x.device)


def _nonzero_samples() -> Iterator[Sample]:
    x = np.random.default_rng(0).integers(0, 2, (3, 4))
    for value in (x, x.astype(bool), x[:0], x[0], np.zeros((2, 2), np.float32), np.array(1.5), np.array(0)):
        yield Sample((value,), {}, False)


def _places(x: np.ndarray, count: str = "") -> np.ndarray:
    return np.array(np.nonzero(x), np.int64) if x.ndim else np.zeros((0, int(bool(x))), np.int64)


def _numbers_infer(limit: TensorSpec, *, count: str = "count") -> TensorSpec:
    if limit.shape or limit.dtype != INT64:
        raise ShapeError(f"numbers: its limit is {limit}; expected a single int64")
    return TensorSpec((counted_size(count),), INT64, limit.device)


def _numbers_samples() -> Iterator[Sample]:
    for limit in (5, 1, 0, -2):
        yield Sample((np.array(limit, np.int64),), {}, False)


define(
    "numbers",
    _numbers_infer,
    lambda limit, count="": np.arange(max(int(limit), 0), dtype=np.int64),
    _INDICES,
    ONNX_WRITER,
    _numbers_samples,
    lambda: [ErrorSample((np.zeros(2, np.int64),), {}, ShapeError, "expected a single int64")],
    counts=True,
)
define("nonzero", _nonzero_infer, _places, _INDICES, OnnxRule("NonZero", read=False), _nonzero_samples, counts=True)


def places(mask: Tensor) -> list[Tensor]:
    """Indices of the true elements of a mask, one tensor for each axis."""
    found = apply("nonzero", mask)
    rows = [apply("slice", found, starts=(a, 0), stops=(a + 1, None), steps=(1, 1)) for a in range(mask.ndim)]
    return [apply("reshape", row, shape=(-1,)) for row in rows]


@public(home="megengine.functional.tensor")
def cond_take(mask: TensorLike, x: TensorLike) -> tuple[Tensor, Tensor]:
    """The elements of x where the boolean mask (of x's shape) is true, and their int32 indices in x flattened.

    Raises ShapeError and DTypeError where the mask does not fit. The number of elements depends on values.
    """
    values, m = as_tensor(x), as_tensor(mask)
    if m.dtype != BOOL:
        raise DTypeError(f"cond_take: mask is {m.dtype}; expected bool; compare first")
    if m.shape != values.shape:
        raise ShapeError(f"cond_take: mask has shape {m.shape}, x {values.shape}; expected one shape")
    flat = apply("reshape", values, shape=(-1,) if values.size else (0,))
    (index,) = places(apply("reshape", m, shape=flat.shape))
    index = apply("cast", index, dtype=INT32)
    return apply("index", flat, index, pattern=("i",)), index


def _unique_infer(x: TensorSpec, *, axis: int | None, sort: bool, count: str = "count") -> tuple[TensorSpec, ...]:
    refuse_quantized("unique", x)
    axis = None if axis is None else normalize_axis("unique", axis, x.ndim)
    different = counted_size(count)
    shape = (different,) if axis is None else (*x.shape[:axis], different, *x.shape[axis + 1 :])
    length = math.prod(x.shape) if axis is None else x.shape[axis]
    return TensorSpec(shape, x.dtype, x.device), *(
        TensorSpec((n,), INT64, x.device) for n in (different, length, different)
    )


def _unique(x: np.ndarray, axis: int | None, sort: bool, count: str = "") -> tuple[np.ndarray, ...]:
    y, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)  # some releases of NumPy keep axes
    if not sort:
        order = np.argsort(first, kind="stable")
        y = np.take(y, order, 0 if axis is None else axis)
        inverse, first, counts = np.argsort(order, kind="stable")[inverse], first[order], counts[order]
    return y, first, inverse, counts


def _unique_samples() -> Iterator[Sample]:
    x = np.random.default_rng(0).integers(0, 3, (4, 3)).astype(np.float32)
    for sort in (True, False):
        for axis in (None, 0, 1, -1):
            yield Sample((x,), {"axis": axis, "sort": sort}, False)
    yield Sample((x[:0, 0],), {"axis": None, "sort": True}, False)


define(
    "unique",
    _unique_infer,
    _unique,
    not_differentiable("the number of its results depends on values"),
    OnnxRule("Unique", {"axis": "axis", "sort": "sorted"}, read=False),
    _unique_samples,
    lambda: [ErrorSample((np.zeros(3, "f"),), {"axis": 1, "sort": True}, IndexError, "unique: axis 1 is out of range")],
    counts=True,
)


def _nms_infer(
    boxes: TensorSpec, scores: TensorSpec, *, threshold: float, limit: int | None, count: str = "count"
) -> TensorSpec:
    if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
        raise ShapeError(f"nms: boxes have shape {boxes.shape}, scores {scores.shape}; expected [N, 4] and [N]")
    return TensorSpec((counted_size(count),), INT32, boxes.device)


def _nms(boxes: np.ndarray, scores: np.ndarray, threshold: float, limit: int | None, count: str = "") -> np.ndarray:
    """Indices of the kept boxes in descending order of their scores."""
    order = np.argsort(-scores, kind="stable")
    x0, y0, x1, y1 = boxes[order].T
    area = (x1 - x0) * (y1 - y0)

    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = np.minimum(x1[a], x1[b]) - np.maximum(x0[a], x0[b])
        height = np.minimum(y1[a], y1[b]) - np.maximum(y0[a], y0[b])
        overlap = np.maximum(width, 0) * np.maximum(height, 0)
        return ~(overlap <= threshold * (area[a] + area[b] - overlap))

    return order[_best(len(order), near, len(order) if limit is None else limit)].astype(np.int32)


_BLOCK, _PART = 64, 256  # boxes that are compared with each other, and with others, at once: in fast memory


def _best(count: int, near: Callable[[np.ndarray, np.ndarray], np.ndarray], most: int) -> np.ndarray:
    """Places of the boxes, best first, to which no better one that stays is near: at most so many."""
    left, found, kept = np.arange(count), 0, [np.zeros(0, np.int64)]
    while len(left) and found < most:
        block, left = left[:_BLOCK], left[_BLOCK:]
        among, alive = near(block[:, None], block), np.ones(len(block), bool)
        for k in range(len(block)):
            if alive[k]:
                alive[k + 1 :] &= ~among[k, k + 1 :]
        chosen = block[alive][: most - found]
        found += len(chosen)
        kept.append(chosen)
        parts = (left[k : k + _PART] for k in range(0, len(left), _PART))
        left = np.concatenate([left[:0], *(part[~near(chosen[:, None], part).any(axis=0)] for part in parts)])
    return np.concatenate(kept)


def _nms_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    corners = rng.uniform(0, 5, (12, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(1, 4, (12, 2))], 1)
    for n in (0, 1, 12):
        scores = rng.permutation(12)[:n] / 12.0
        yield Sample((boxes[:n], scores), {"threshold": 0.4, "limit": 3 if n == 12 else None}, False)


_NMS_ERROR = ErrorSample(
    (np.zeros((3, 5), "f"), np.zeros(3, "f")), {"threshold": 0.5, "limit": None}, ShapeError, "nms: boxes"
)
define("nms", _nms_infer, _nms, _INDICES, ONNX_WRITER, _nms_samples, lambda: [_NMS_ERROR], counts=True)


@public(home="megengine.functional.vision")
def nms(boxes: TensorLike, scores: TensorLike, iou_thresh: float, max_output: int | None = None) -> Tensor:
    """int32 indices of the boxes [N,4] (x0, y0, x1, y1) that no better one overlaps by more than iou_thresh.

    In descending order of scores [N], at most max_output. The number of results depends on values.
    """
    if not 0 <= iou_thresh <= 1:
        raise OptionError(f"nms: iou_thresh is {iou_thresh}; expected 0..1")
    if max_output is not None and max_output < 0:
        raise OptionError(f"nms: max_output is {max_output}; expected at least 0")
    limit = None if max_output is None else int(max_output)
    return apply("nms", floating(boxes), floating(scores), threshold=float(iou_thresh), limit=limit)


def _batched_infer(
    boxes: TensorSpec, scores: TensorSpec, *bounds: TensorSpec, center: bool, count: str = "count"
) -> TensorSpec:
    limit, overlap, least = bounds
    fits = boxes.ndim == scores.ndim == 3 and boxes.shape[2] == 4
    if not fits or (scores.shape[0], scores.shape[2]) != boxes.shape[:2]:
        raise ShapeError(
            f"batched_nms: boxes have shape {boxes.shape}, scores {scores.shape}; expected [B, N, 4] and [B, C, N]"
        )
    if any(s.size != 1 for s in (limit, overlap, least)) or storage_of(limit.dtype).kind not in "iu":
        raise ShapeError(
            f"batched_nms: limit {limit}, overlap {overlap}, least {least}; expected an integer and two numbers"
        )
    return TensorSpec((counted_size(count), 3), INT64, boxes.device)


def _corners(boxes: np.ndarray, center: bool) -> tuple[np.ndarray, ...]:
    """Smaller and larger ends along both axes; boxes are two opposite corners, or center and sizes."""
    if center:
        x, y, width, height = boxes.T
        half = boxes.dtype.type(2)
        return x - width / half, y - height / half, x + width / half, y + height / half
    y0, x0, y1, x1 = boxes.T
    return np.minimum(x0, x1), np.minimum(y0, y1), np.maximum(x0, x1), np.maximum(y0, y1)


def _batched(boxes: np.ndarray, scores: np.ndarray, *bounds: np.ndarray, center: bool, count: str = "") -> np.ndarray:
    limit, overlap, least = bounds
    most, bound = int(limit.reshape(-1)[0]), overlap.reshape(-1)[0]
    rows: list[np.ndarray] = []
    for batch, of_class in np.ndindex(scores.shape[:2]):
        row = scores[batch, of_class]
        chosen = np.flatnonzero(row > least.reshape(-1)[0])
        order = chosen[np.argsort(-row[chosen], kind="stable")]
        kept = order[_apart(_corners(boxes[batch][order], center), bound, most)]
        rows.append(np.stack([np.full(len(kept), batch), np.full(len(kept), of_class), kept], 1))
    return np.concatenate(rows).astype(np.int64) if rows else np.zeros((0, 3), np.int64)


def _apart(corners: tuple[np.ndarray, ...], bound: Any, most: int) -> np.ndarray:
    """Places of the boxes, best first, that overlap no better one by more than `bound`: at most so many."""
    x0, y0, x1, y1 = corners
    area = (x1 - x0) * (y1 - y0)

    def near(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        width = np.minimum(x1[a], x1[b]) - np.maximum(x0[a], x0[b])
        height = np.minimum(y1[a], y1[b]) - np.maximum(y0[a], y0[b])
        shared = np.maximum(width, 0) * np.maximum(height, 0)
        real = (shared > 0) & (area[a] > 0) & (area[b] > 0)
        total = np.where(real, area[a] + area[b] - shared, 1)
        return real & (shared / total > bound)

    return _best(len(area), near, most)


def _batched_samples() -> Iterator[Sample]:
    rng = np.random.default_rng(0)
    boxes = rng.uniform(0, 5, (2, 12, 4)).astype(np.float32)
    scores = (rng.permutation(2 * 3 * 12) / 72).reshape(2, 3, 12).astype(np.float32)
    for limit, overlap, least, center in ((4, 0.3, 0.2, False), (50, 0.1, -np.inf, True), (0, 0.5, 0.0, False)):
        bounds = (np.array([limit]), np.array([overlap], np.float32), np.array([least], np.float32))
        yield Sample((boxes, scores, *bounds), {"center": center}, False)
    yield Sample((boxes[:, :0], scores[..., :0], np.array(4), *np.zeros((2, 1), np.float32)), {"center": False}, False)


_SHAPES = (np.zeros((1, 3, 4), "f"), np.zeros((1, 2, 4), "f"), np.array(1), np.zeros(1, "f"), np.zeros(1, "f"))
define(
    "batched_nms",
    _batched_infer,
    _batched,
    _INDICES,
    ONNX_WRITER,
    _batched_samples,
    lambda: [
        ErrorSample(_SHAPES, {"center": False}, ShapeError, "batched_nms: boxes have shape"),
        ErrorSample(
            (_SHAPES[0], np.zeros((1, 2, 3), "f"), np.zeros(1, "f"), *_SHAPES[3:]),
            {"center": False},
            ShapeError,
            "batched_nms: limit",
        ),
    ],
    counts=True,
)
