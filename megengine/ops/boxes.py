"""Pooling of regions, deformable ones included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, IndexOutOfRangeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import ErrorSample, Sample, apply, define, no_onnx, public
from megengine.kernels.reference.order import in_order
from megengine.ops.common import INT32, POOLINGS, Integers, as_tensor, cast, choice, floating, pair
from megengine.ops.sampling import check_rois
from megengine.ops.sampling import sample as sample_points
from megengine.ops.unary import round_half_away
from megengine.tensor import Tensor

_VISION = "megengine.functional.vision"


def _pool_infer(x: TensorSpec, rois: TensorSpec, *, size: Any, mode: str, scale: Any) -> tuple[TensorSpec, TensorSpec]:
    choice("roi_pooling", "mode", mode, POOLINGS)
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 5 or min(size) < 1:
        raise ShapeError(
            f"roi_pooling: inp has shape {x.shape}, rois {rois.shape}, size {size}; expected [N,C,H,W], [R,5]"
        )
    if x.dtype != rois.dtype:
        raise DTypeError(f"roi_pooling: inp is {x.dtype}, rois {rois.dtype}; expected one dtype")
    shape = (rois.shape[0], x.shape[1], *size)
    return TensorSpec(shape, x.dtype, x.device), TensorSpec((rois.shape[0], 4, max(size)), INT32, x.device)


def _parts(rois: np.ndarray, cells: np.ndarray, size: tuple[int, int]) -> Iterator[tuple[tuple, tuple]]:
    """For each cell that is not empty: the index of its result, and of its region in the pictures."""
    for r, picture in enumerate(rois[:, 0].astype(np.int64)):
        for i, j in np.ndindex(size):
            rows, columns = slice(cells[r, 0, i], cells[r, 1, i]), slice(cells[r, 2, j], cells[r, 3, j])
            if rows.stop > rows.start and columns.stop > columns.start:
                yield (r, slice(None), i, j), (picture, slice(None), rows, columns)


def _pool(x: np.ndarray, rois: np.ndarray, size: Any, mode: str, scale: Any) -> tuple:
    pictures = rois[:, 0].astype(np.int64)
    if pictures.size and (pictures.min() < 0 or pictures.max() >= len(x)):
        worst = pictures.max() if pictures.max() >= len(x) else pictures.min()
        raise IndexOutOfRangeError(f"roi_pooling: picture {worst} is out of range for {counted(len(x), 'picture')}")
    cells = np.zeros((len(rois), 4, max(size)), np.int32)  # first and last+1 row of every cell, then columns
    for axis, (n, length) in enumerate(zip(size, x.shape[2:], strict=True)):
        start, stop = (round_half_away(rois[:, column] * scale) for column in (2 - axis, 4 - axis))
        step = np.maximum(stop - start + 1, 1)[:, None] / n
        at = np.arange(n, dtype=rois.dtype)
        cells[:, 2 * axis, :n] = np.clip(np.floor(at * step) + start[:, None], 0, length)
        cells[:, 2 * axis + 1, :n] = np.clip(np.ceil((at + 1) * step) + start[:, None], 0, length)
    out = np.zeros((len(rois), x.shape[1], *size), x.dtype)
    for place, region in _parts(rois, cells, size):
        part = in_order(x[region])
        out[place] = part.mean((1, 2)) if mode == "average" else part.max((1, 2))
    return out, cells


def _pool_vjp(ctx: Any, ct: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
    cells = ctx.outputs[1]
    return apply("roi_pooling_backward", ct, *ctx.inputs, cells, mode=ctx.attrs["mode"]), None


def _best(part: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each channel of a region, its index and the flat position of its first largest element."""
    return np.arange(len(part)), part.reshape(len(part), -1).argmax(1)


def _pool_backward(ct: np.ndarray, x: np.ndarray, rois: np.ndarray, cells: np.ndarray, mode: str) -> np.ndarray:
    grad = np.zeros_like(x)
    for place, region in _parts(rois, cells, ct.shape[2:]):
        part = x[region]
        if mode == "average":
            grad[region] += ct[place][:, None, None] / part[0].size
        else:
            share = np.zeros((len(part), part[0].size), x.dtype)
            share[_best(part)] = ct[place]
            grad[region] += share.reshape(part.shape)
    return grad


def _pool_chosen(g: np.ndarray, x: np.ndarray, rois: np.ndarray, cells: np.ndarray, *, size: Any, mode: str) -> Any:
    out = np.zeros((len(rois), x.shape[1], *size), g.dtype)
    for place, region in _parts(rois, cells, size):
        part = in_order(g[region])
        out[place] = part.mean((1, 2)) if mode == "average" else part.reshape(len(part), -1)[_best(x[region])]
    return out


def _backward_vjp(ctx: Any, g: Tensor) -> tuple:
    """Linear in the cotangent; small changes of the pictures do not change which elements are the largest."""
    ct, *rest = ctx.inputs
    return apply("roi_pooling_chosen", g, *rest, size=ct.shape[2:], mode=ctx.attrs["mode"]), None, None, None


_ROIS = np.array([[0, 0.5, 0.6, 4.2, 4.4], [1, 1, 1, 9, 9], [0, 3, 2, 1, 5]])


def _pool_samples() -> Iterator[Sample]:
    x = np.random.default_rng(0).permutation(2 * 2 * 6 * 7).reshape(2, 2, 6, 7) / 10.0
    rois = np.add(_ROIS, [0.25, 0, 0, 0, 0])  # a small step stays within the picture
    for mode in POOLINGS:
        yield Sample((x, rois), {"size": (2, 3), "mode": mode, "scale": 0.65})
    yield Sample((x, _ROIS[:0]), {"size": (2, 2), "mode": POOLINGS[0], "scale": 1.0})


def _pool_errors() -> Iterator[ErrorSample]:
    x, rois = np.zeros((2, 2, 6, 7), np.float32), _ROIS.astype(np.float32)
    attrs = {"size": (2, 2), "mode": POOLINGS[0], "scale": 1.0}
    yield ErrorSample((x, rois), {**attrs, "mode": "avrage"}, OptionError, "did you mean 'average'")
    yield ErrorSample((x, rois[:, :4]), attrs, ShapeError, "roi_pooling: inp has shape")


def _backward_samples() -> Iterator[Sample]:
    for sample in _pool_samples():
        y, cells = _pool(*sample.inputs, **sample.attrs)
        ct = np.random.default_rng(1).standard_normal(y.shape)
        yield Sample((ct, *sample.inputs, cells), {"mode": sample.attrs["mode"]})


def _chosen_samples() -> Iterator[Sample]:
    for sample in _backward_samples():
        ct, x, rois, cells = sample.inputs
        g = np.random.default_rng(2).standard_normal(x.shape)
        yield Sample((g, x, rois, cells), {"size": ct.shape[2:], **sample.attrs})


define("roi_pooling", _pool_infer, _pool, _pool_vjp, no_onnx("MaxRoiPool differs"), _pool_samples, _pool_errors)
define(
    "roi_pooling_backward",
    lambda ct, x, rois, cells, *, mode: x,
    _pool_backward,
    _backward_vjp,
    no_onnx("gradient of roi_pooling"),
    _backward_samples,
)
define(
    "roi_pooling_chosen",
    lambda g, x, rois, cells, *, size, mode: TensorSpec((rois.shape[0], x.shape[1], *size), g.dtype, g.device),
    _pool_chosen,
    lambda ctx, ct: (apply("roi_pooling_backward", ct, *ctx.inputs[1:], mode=ctx.attrs["mode"]), None, None, None),
    no_onnx("gradient of the gradient of roi_pooling"),
    _chosen_samples,
)


@public(home=_VISION)
def roi_pooling(
    inp: TensorLike, rois: TensorLike, output_shape: Integers, mode: str = POOLINGS[0], scale: float = 1.0
) -> Tensor:
    """Regions of inp [N,C,H,W] as pictures of output_shape: largest elements (or means) of cells, [R,C,oh,ow].

    rois [R,5]: picture, x0, y0, x1, y1, times `scale`, rounded. An empty cell gives 0. Source: Girshick, "Fast R-CNN",
    2015. Raises IndexOutOfRangeError for a picture that does not exist.
    """
    x, r = floating(as_tensor(inp)), floating(rois)
    mode = choice("roi_pooling", "mode", mode, POOLINGS, any_case=True)
    return apply(
        "roi_pooling", x, r, size=pair("roi_pooling", "output_shape", output_shape), mode=mode, scale=float(scale)
    )[0]


def _moves(trans: Tensor, n: int, classes: int, part: int, cells: tuple[int, int]) -> list[Tensor]:
    """Shifts in columns and rows of each region, class and cell, [R, classes, cells]."""
    if trans.shape != (n, 2 * classes, part, part):
        expected = f"({n}, 2*classes, {part}, {part})"
        raise ShapeError(f"deformable_psroi_pooling: trans has shape {trans.shape}; expected {expected}")
    rows, columns = (np.arange(length) * part // length for length in cells)
    at = (rows[:, None] * part + columns[None, :]).reshape(-1).astype(np.int32)
    index = Tensor._wrap(at, None, trans.device)
    flat = apply("reshape", trans, shape=(n, classes, 2, part * part))
    whole = (None, None, None)
    taken = apply("index", flat, index, pattern=(whole, whole, whole, "i"))
    return [taken[:, :, 0], taken[:, :, 1]]


@public(home="megengine.functional.nn")
def deformable_psroi_pooling(
    inp: TensorLike,
    rois: TensorLike,
    trans: TensorLike,
    no_trans: bool,
    part_size: int,
    pooled_h: int,
    pooled_w: int,
    sample_per_part: int,
    spatial_scale: float,
    trans_std: float = 0.1,
) -> Tensor:
    """Means over the cells of regions of inp [N,C,H,W], each cell shifted by `trans`: [R,C,pooled_h,pooled_w].

    rois [R,5]: picture, x0, y0, x1, y1, times spatial_scale; trans [R,2*classes,part_size,part_size], moves as parts of
    the region, times trans_std, ignored with no_trans. Source: Dai et al., "Deformable Convolutional Networks", 2017.
    """
    op = "deformable_psroi_pooling"
    x, r, t = floating(inp), floating(rois), floating(trans)
    check_rois(op, x, r)
    counts = {"part_size": part_size, "pooled_h": pooled_h, "pooled_w": pooled_w, "sample_per_part": sample_per_part}
    for name, value in counts.items():
        if value < 1:
            raise OptionError(f"{op}: {name} is {value}; expected at least 1")
    (n, c), (h, w), k = (r.shape[0], x.shape[1]), x.shape[2:], sample_per_part
    classes = 1 if no_trans or t.ndim != 4 else t.shape[1] // 2
    if not classes or c % classes:
        raise ShapeError(f"{op}: {counted(c, 'channel')} cannot be divided among trans {t.shape}")
    moves = None if no_trans else _moves(t, n, classes, part_size, (pooled_h, pooled_w))
    points = []
    grid = np.indices((pooled_h, pooled_w, k, k)).reshape(4, pooled_h * pooled_w, k * k)
    for axis, cells in ((0, pooled_h), (1, pooled_w)):
        start = apply("round", r[:, 2 - axis]) * spatial_scale - 0.5
        stop = (apply("round", r[:, 4 - axis]) + 1) * spatial_scale - 0.5
        length = apply("reshape", apply("clip", stop - start, lo=0.1, hi=float("inf")), shape=(n, 1, 1, 1))
        part = Tensor(((grid[axis] + grid[axis + 2] / k) / cells).astype(np.float32)[None, None], device=x.device)
        at = apply("reshape", start, shape=(n, 1, 1, 1)) + length * part
        if moves is not None:
            move = moves[1 - axis]
            at = at + apply("reshape", move, shape=(*move.shape, 1)) * trans_std * length
        at = apply("broadcast_to", at, shape=(n, classes, *grid.shape[1:]))
        points.append(apply("reshape", at, shape=(n * classes, -1)))
    ys, xs = points
    rows = apply("logical_and", ys >= -0.5, ys <= h - 0.5)
    seen = cast(apply("logical_and", rows, apply("logical_and", xs >= -0.5, xs <= w - 0.5)), x.dtype)
    ys, xs = apply("clip", ys, lo=0.0, hi=float(h - 1)), apply("clip", xs, lo=0.0, hi=float(w - 1))
    pictures = apply("reshape", x, shape=(x.shape[0] * classes, c // classes, h, w))
    numbers = Tensor(np.arange(classes, dtype=np.int32)[None], device=x.device)
    batch = apply("reshape", cast(r[:, 0:1], INT32) * classes + numbers, shape=(n * classes, 1))
    pixels = sample_points(pictures, batch, ys, xs, border="replicate")
    cells = (n, classes, pooled_h * pooled_w, k * k)
    inside = apply("reshape", seen, shape=(*cells, 1))
    total = apply("sum", apply("reshape", pixels, shape=(*cells, -1)) * inside, axis=(3,), keepdims=False)
    count = apply("clip", apply("sum", inside, axis=(3,), keepdims=False), lo=1.0, hi=float("inf"))
    y = apply("transpose", total / count, perm=(0, 1, 3, 2))
    return apply("reshape", y, shape=(n, c, pooled_h, pooled_w))
