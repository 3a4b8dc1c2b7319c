"""Deformable pooling of regions."""

from __future__ import annotations

import numpy as np

from megengine.core.errors import OptionError, ShapeError
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import apply, public
from megengine.ops.common import INT32, cast, floating
from megengine.ops.sampling import check_rois, sample
from megengine.tensor import Tensor


def _moves(trans: Tensor, n: int, classes: int, part: int, cells: tuple[int, int]) -> list[Tensor]:
    """Moves in columns and rows of each region, class and cell, [R, classes, cells]."""
    if trans.shape != (n, 2 * classes, part, part):
        raise ShapeError(
            f"deformable_psroi_pooling: trans has shape {trans.shape}; expected ({n}, 2*classes, {part}, {part})"
        )
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
    """Means over the cells of regions of inp [N,C,H,W], each cell moved by `trans`: [R,C,pooled_h,pooled_w].

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
    pixels = sample(pictures, batch, ys, xs, border="replicate")
    cells = (n, classes, pooled_h * pooled_w, k * k)
    inside = apply("reshape", seen, shape=(*cells, 1))
    total = apply("sum", apply("reshape", pixels, shape=(*cells, -1)) * inside, axis=(3,), keepdims=False)
    count = apply("clip", apply("sum", inside, axis=(3,), keepdims=False), lo=1.0, hi=float("inf"))
    y = apply("transpose", total / count, perm=(0, 1, 3, 2))
    return apply("reshape", y, shape=(n, c, pooled_h, pooled_w))
