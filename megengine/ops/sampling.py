"""Interpolation between pixels: remap, warps, deformable convolution, RoI align. Compositions of indexing."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from megengine.core.dtype import is_float
from megengine.core.errors import DeviceError, OptionError, ShapeError
from megengine.core.sizes import is_open
from megengine.core.types import TensorLike
from megengine.dispatch import apply, public
from megengine.kernels.reference.resize import cubic_weights
from megengine.ops import quantized_calls
from megengine.ops.common import (
    INT32,
    POOLINGS,
    Integers,
    as_tensor,
    cast,
    check_modes,
    choice,
    counting,
    floating,
    operands,
    pair,
    rounded_to,
    size_tensor,
)
from megengine.ops.conv import bias_of_channels
from megengine.ops.matmul import product
from megengine.tensor import Tensor

_VISION = "megengine.functional.vision"
BORDERS = ("replicate", "reflect", "reflect_101", "wrap", "constant", "isolated", "transparent")


def _limit(n: int, like: Tensor) -> Any:
    """A length that positions are compared with; an open one is computed."""
    return cast(size_tensor(n, device=like.device), like.dtype) if is_open(n) else n


def _clamped(at: Tensor, n: int) -> Tensor:
    """Positions in 0..n-1: those beyond the ends are at the ends."""
    if not is_open(n):
        return apply("clip", at, lo=0.0, hi=float(n - 1))
    return apply("minimum", apply("maximum", at, as_tensor(0, like=at)), _limit(n, at) - 1)


def _into(index: Tensor, n: int, border: str) -> Tensor:
    """Integer positions mapped into 0..n-1 by the rule `border` (OpenCV's names)."""
    if border in ("replicate", "constant"):
        return _clamped(index, n)
    if n == 1:
        return index * 0
    n = _limit(n, index)
    if border == "wrap":
        return index % n
    period, last = (2 * n, 2 * n - 1) if border == "reflect" else (2 * n - 2, 2 * n - 2)
    inside = index % period
    return apply("minimum", inside, last - inside)


def _neighbours(at: Tensor, interp: str) -> list[tuple[Tensor, Tensor | None]]:
    """Positions (floats) as (int32 neighbour, weight); nearest has one neighbour and no weight."""
    base = apply("floor", at)
    first = cast(base, INT32)
    if interp == "nearest":
        return [(first, None)]
    t = at - base
    if interp == "linear":
        return [(first, 1 - t), (first + 1, t)]
    return list(zip((first - 1, first, first + 1, first + 2), cubic_weights(t), strict=True))


def sample(
    x: Tensor, batch: Tensor, ys: Tensor, xs: Tensor, *, border: str, value: float = 0.0, interp: str = "linear"
) -> Tensor:
    """X [N,C,H,W] at rows ys and columns xs [B,P] of pictures batch [B,1] (int32) -> [B,P,C].

    Differentiable for x, ys and xs. With border "constant" neighbours outside count as `value`.
    """
    h, w = x.shape[2:]
    if not h or not w:
        raise ShapeError(f"sampling: the picture has shape {x.shape}; expected at least one pixel")
    total = None
    for yi, wy in _neighbours(ys, interp):
        for xi, wx in _neighbours(xs, interp):
            rows, columns = _into(yi, h, border), _into(xi, w, border)
            pixel = apply("index", x, batch, rows, columns, pattern=("i", (None, None, None), "i", "i"))
            if border == "constant":
                inside = apply("logical_and", apply("logical_and", yi >= 0, yi < _limit(h, yi)), xi >= 0)
                inside = apply("logical_and", inside, xi < _limit(w, xi))
                pixel = apply("where", _last(inside), pixel, as_tensor(value, like=pixel))
            if wy is not None and wx is not None:
                pixel = pixel * _last(wy * wx)
            total = pixel if total is None else total + pixel
    assert total is not None
    return total


def _last(t: Tensor) -> Tensor:
    return apply("reshape", t, shape=(*t.shape, 1))


def _batch(n: int, device: str) -> Tensor:
    return apply("reshape", counting(n, np.int32, device), shape=(n, 1))


def _check(op: str, border: str, interp: str, interps: tuple[str, ...]) -> str:
    choice(op, "border_mode", border.lower(), BORDERS[:5])
    choice(op, "interp_mode", interp.lower(), interps)
    return interp.lower()


def _picture(op: str, x: Tensor, axes: str = "[N,C,H,W]") -> None:
    if x.ndim != 4:
        raise ShapeError(f"{op}: inp has shape {x.shape}; expected {axes}")


def _channels_first(pixels: Tensor, oh: int, ow: int) -> Tensor:
    """[B, oh*ow, C] -> [B, C, oh, ow]."""
    b, _, c = pixels.shape
    return apply("reshape", apply("transpose", pixels, perm=(0, 2, 1)), shape=(b, c, oh, ow))


@public(home=_VISION)
def remap(
    inp: TensorLike,
    map_xy: TensorLike,
    border_mode: str = "replicate",
    scalar: float = 0.0,
    interp_mode: str = "linear",
) -> Tensor:
    """Inp [N,C,H,W] read at the points map_xy [N,oh,ow,2] (column, row): [N,C,oh,ow].

    border_mode: replicate, reflect, reflect_101, wrap, or constant (`scalar` outside); interp_mode: linear or nearest.
    """
    interp = _check("remap", border_mode, interp_mode, ("linear", "nearest"))
    x, points = as_tensor(inp), floating(map_xy)
    _picture("remap", x)
    if points.ndim != 4 or points.shape[3] != 2 or points.shape[0] != x.shape[0]:
        raise ShapeError(f"remap: map_xy has shape {points.shape}; expected ({x.shape[0]}, oh, ow, 2)")
    n, oh, ow, _ = points.shape
    xs, ys = (apply("reshape", points[..., k], shape=(n, oh * ow)) for k in (0, 1))
    if interp == "nearest":
        xs, ys = apply("round", xs), apply("round", ys)
    border, value = border_mode.lower(), float(scalar)
    y = sample(floating(x), _batch(n, x.device), ys, xs, border=border, value=value, interp=interp)
    return rounded_to(_channels_first(y, oh, ow), x.dtype)


def _size(op: str, value: Any) -> tuple[int, int]:
    return pair(op, "out_shape", tuple(value.tolist()) if isinstance(value, (Tensor, np.ndarray)) else value)


def _grid(oh: int, ow: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns of a picture as floats, [1, oh*ow] each."""
    rows, columns = np.divmod(np.arange(oh * ow, dtype=np.float32).reshape(1, -1), max(ow, 1))
    ys, xs = (Tensor._wrap(v.astype(np.float32), None, like.device) for v in (rows, columns))
    return ys, xs


def _warp(x: Tensor, points: tuple[Tensor, Tensor], batch: Tensor, size: tuple[int, int], **options: Any) -> Tensor:
    pixels = sample(floating(x), batch, *points, **options)
    return rounded_to(_channels_first(pixels, *size), x.dtype)


def _as_nchw(op: str, inp: Any, layout: str) -> Tensor:
    x = as_tensor(inp)
    choice(op, "format", layout, ("NCHW", "NHWC"))
    _picture(op, x, f"{layout}, four axes")
    return x if layout == "NCHW" else apply("transpose", x, perm=(0, 3, 1, 2))


@public(home=_VISION, quantized=quantized_calls.warped)
def warp_affine(
    inp: TensorLike,
    mat: TensorLike,
    out_shape: Integers,
    border_mode: str = "replicate",
    border_val: float = 0.0,
    format: str = "NHWC",
    interp_mode: str = "linear",
) -> Tensor:
    """Inp [N,H,W,C] (or NCHW by `format`) read at mat [N,2,3] times (column, row, 1) of every pixel of out_shape.

    interp_mode: linear, nearest or cubic. With NHWC and at most 3 channels points are rounded to 1/32 of a pixel (not
    for float16), as OpenCV and MegEngine have it. Raises OptionError and ShapeError.
    """
    op = "warp_affine"
    interp = _check(op, border_mode, interp_mode, ("linear", "nearest", "cubic"))
    x, m, (oh, ow) = _as_nchw(op, inp, format), floating(mat), _size(op, out_shape)
    if m.shape != (x.shape[0], 2, 3):
        raise ShapeError(f"{op}: mat has shape {m.shape}; expected ({x.shape[0]}, 2, 3)")
    rows, columns = _grid(oh, ow, x)
    xs, ys = (columns * m[:, k, 0:1] + rows * m[:, k, 1:2] + m[:, k, 2:3] for k in (0, 1))
    if format == "NHWC" and x.shape[1] <= 3 and x.dtype != np.float16:
        steps = [
            apply("round", columns * m[:, k, 0:1] * 1024) + apply("round", (rows * m[:, k, 1:2] + m[:, k, 2:3]) * 1024)
            for k in (0, 1)
        ]
        unit = 1024 if interp == "nearest" else 32
        xs, ys = (apply("floor", (v + unit / 2) / unit) * (unit / 1024) for v in steps)
    border = border_mode.lower()
    batch = _batch(x.shape[0], x.device)
    y = _warp(x, (ys, xs), batch, (oh, ow), border=border, value=float(border_val), interp=interp)
    return y if format == "NCHW" else apply("transpose", y, perm=(0, 2, 3, 1))


@public(home=_VISION, quantized=quantized_calls.warped)
def warp_perspective(
    inp: TensorLike,
    mat: TensorLike,
    out_shape: Integers,
    mat_idx: TensorLike | None = None,
    border_mode: str = "replicate",
    border_val: float = 0.0,
    format: str = "NCHW",
    interp_mode: str = "linear",
) -> Tensor:
    """Inp [N,C,H,W] (or NHWC) read at mat [M,3,3] times (column, row, 1) of every pixel of out_shape, divided by w.

    mat_idx: for each of the M matrices the picture it reads; without it M = N. Raises OptionError and ShapeError.
    """
    op = "warp_perspective"
    interp = _check(op, border_mode, interp_mode, ("linear", "nearest", "cubic"))
    inp, m = operands(op, inp, floating(mat)) if is_float(as_tensor(inp).dtype) else (inp, floating(mat))
    x, (oh, ow) = _as_nchw(op, inp, format), _size(op, out_shape)
    batch = _batch(x.shape[0], x.device) if mat_idx is None else as_tensor(mat_idx)
    batch = apply("reshape", batch, shape=(batch.size, 1))
    if m.shape != (batch.size, 3, 3):
        raise ShapeError(f"{op}: mat has shape {m.shape}; expected ({batch.size}, 3, 3)")
    rows, columns = _grid(oh, ow, x)
    xs, ys, ws = (columns * m[:, k, 0:1] + rows * m[:, k, 1:2] + m[:, k, 2:3] for k in range(3))
    options = {"border": border_mode.lower(), "value": float(border_val), "interp": interp}
    ys, xs = ys / ws, xs / ws
    if format == "NHWC":
        unit = 1 if interp == "nearest" else 32
        ys, xs = apply("round", ys * unit) / unit, apply("round", xs * unit) / unit
    y = _warp(x, (ys, xs), batch, (oh, ow), **options)
    return y if format == "NCHW" else apply("transpose", y, perm=(0, 2, 3, 1))


def _moved_taps(offset: Tensor, kernel: Any, out: Any, stride: Any, padding: Any, dilation: Any) -> list[Tensor]:
    """Rows and columns that the taps of a convolution read, moved by offset [N,2*D*taps,oh,ow]: [N*D, taps*oh*ow]."""
    taps, grid = kernel[0] * kernel[1], np.indices((*kernel, *out))
    groups = offset.shape[0] * offset.shape[1] // (2 * taps)
    moves = apply("reshape", offset, shape=(groups, taps, 2, *out))
    points = []
    for axis in (0, 1):
        rest = grid[axis] * dilation[axis] + grid[axis + 2] * stride[axis] - padding[axis]
        at = Tensor(rest.reshape(1, taps, *out), dtype=offset.dtype, device=offset.device)
        points.append(apply("reshape", moves[:, :, axis] + at, shape=(groups, taps * out[0] * out[1])))
    return points


@public(home="megengine.functional.nn")
def deformable_conv2d(
    inp: TensorLike,
    weight: TensorLike,
    offset: TensorLike,
    mask: TensorLike,
    bias: TensorLike | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    dilation: Integers = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """A convolution whose taps are moved by offset [N,2*D*kh*kw,oh,ow] (row, column) and weighted by mask.

    inp [N,C,H,W], weight [O,C/groups,kh,kw], mask [N,D*kh*kw,oh,ow]; D groups of channels share offsets.
    Source: Zhu et al., "Deformable ConvNets v2", 2019.
    """
    op = "deformable_conv2d"
    check_modes(op, conv_mode, compute_mode)
    x, w = operands(op, inp, weight)
    if w.ndim not in (4, 5):
        raise ShapeError(f"{op}: weight has shape {w.shape}; expected [O,C/groups,kh,kw], or 5 axes with groups")
    w = apply("reshape", w, shape=(w.shape[0] * w.shape[1], *w.shape[2:])) if w.ndim == 5 else w
    _picture(op, x)
    off, m = floating(offset), floating(mask)
    (kh, kw), (n, c, h, width) = w.shape[2:], x.shape
    (sh, sw), (ph, pw) = pair(op, "stride", stride), pair(op, "padding", padding)
    dh, dw = pair(op, "dilation", dilation)
    oh, ow = (h + 2 * ph - dh * (kh - 1) - 1) // sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) // sw + 1
    taps = kh * kw
    shared = m.shape[1] // taps if m.ndim == 4 else 0
    if m.shape != (n, shared * taps, oh, ow) or off.shape != (n, 2 * shared * taps, oh, ow) or not shared or c % shared:
        raise ShapeError(
            f"{op}: offset has shape {off.shape}, mask {m.shape}; expected ({n}, 2*D*{taps}, {oh}, {ow}) and half of it"
        )
    points = _moved_taps(off, (kh, kw), (oh, ow), (sh, sw), (ph, pw), (dh, dw))
    pictures = apply("reshape", x, shape=(n * shared, c // shared, h, width))
    pixels = sample(pictures, _batch(n * shared, x.device), *points, border="constant")
    pixels = pixels * apply("reshape", m, shape=(n * shared, taps * oh * ow, 1))
    cols = apply("reshape", pixels, shape=(n, shared, taps, oh, ow, c // shared))
    cols = apply("transpose", cols, perm=(0, 1, 5, 2, 3, 4))
    cols = apply("reshape", cols, shape=(n, groups, c // groups * taps, oh * ow))
    kernel = apply("reshape", w, shape=(1, groups, w.shape[0] // groups, c // groups * taps))
    y = apply("reshape", product(kernel, cols), shape=(n, w.shape[0], oh, ow))
    return y if bias is None else y + bias_of_channels(as_tensor(bias), y.shape)


def check_rois(op: str, x: Tensor, rois: Tensor, columns: int = 5) -> None:
    """Shape of pictures and of regions (picture, x0, y0, x1, y1), and that the pictures exist."""
    _picture(op, x)
    if rois.ndim != 2 or rois.shape[1] != columns:
        raise ShapeError(f"{op}: rois has shape {rois.shape}; expected [R, 5]: picture, x0, y0, x1, y1")


@public(home=_VISION, quantized=quantized_calls.on_reals)
def roi_align(
    inp: TensorLike,
    rois: TensorLike,
    output_shape: Integers,
    mode: str = "average",
    spatial_scale: float = 1.0,
    sample_points: Integers = 2,
    aligned: bool = True,
) -> Tensor:
    """Regions of inp [N,C,H,W] as pictures of output_shape: [R,C,oh,ow].

    rois [R,5]: picture, x0, y0, x1, y1, times `spatial_scale`. A cell is the mean (or with mode
    "max" the largest) of sample_points (rows,columns) bilinear samples; `aligned` shifts by half a pixel. Outside is 0.
    Source: He et al., "Mask R-CNN", 2017.
    """
    op = "roi_align"
    choice(op, "mode", mode.lower(), POOLINGS)
    x, r = floating(inp), floating(rois)
    check_rois(op, x, r)
    (oh, ow), (sy, sx) = pair(op, "output_shape", output_shape), pair(op, "sample_points", sample_points)
    if min(oh, ow, sy, sx) < 1:
        raise OptionError(f"{op}: output_shape {oh, ow} and sample_points {sy, sx}; expected at least 1 each")
    corners = r[:, 1:] * spatial_scale - (0.5 if aligned else 0.0)
    x0, y0 = corners[:, 0:1], corners[:, 1:2]
    width, height = corners[:, 2:3] - x0, corners[:, 3:4] - y0
    width, height = (apply("clip", v, lo=0.0, hi=float("inf")) for v in (width, height))
    n, cells = r.shape[0], (oh, ow, sy, sx)
    ys, xs = y0 + height * _fractions(cells, 0, x), x0 + width * _fractions(cells, 1, x)
    pixels = sample(x, cast(r[:, 0:1], INT32), ys, xs, border="constant")
    pixels = apply("reshape", pixels, shape=(n, oh, ow, sy * sx, x.shape[1]))
    y = apply("mean" if mode.lower() == "average" else "max", pixels, axis=(3,), keepdims=False)
    return apply("transpose", y, perm=(0, 3, 1, 2))


def roi_samples(
    x: Tensor,
    rois: Tensor,
    pictures: Tensor,
    *,
    size: tuple[int, int],
    samples: int,
    scale: float,
    shifted: bool,
    mode: str = "avg",
) -> Tensor:
    """Regions [R,4] (x0, y0, x1, y1) of x [N,C,H,W] as ONNX has them: [R,C,*size].

    Samples up to one pixel outside count as on the edge, others as 0; without `shifted` no region is below one pixel.
    Mode "avg" takes the mean of a cell's samples, "max" the largest part of one of four pixels in one of them.
    """
    corners = rois * scale - (0.5 if shifted else 0.0)
    x0, y0, x1, y1 = (corners[:, k : k + 1] for k in range(4))
    width, height = x1 - x0, y1 - y0
    if not shifted:
        width, height = (apply("clip", v, lo=1.0, hi=float("inf")) for v in (width, height))
    n, cells = rois.shape[0], (*size, samples, samples)
    starts = ((y0, height), (x0, width))
    points = [start + length * _fractions(cells, axis, x) for axis, (start, length) in enumerate(starts)]
    inside, clipped = None, []
    for at, length in zip(points, x.shape[2:], strict=True):
        here = apply("logical_and", at >= -1, at <= _limit(length, at))
        inside = here if inside is None else apply("logical_and", inside, here)
        clipped.append(_clamped(at, length))
    batch = apply("reshape", cast(pictures, INT32), shape=(n, 1))
    taken = sample if mode == "avg" else _largest_part
    pixels = taken(x, batch, *clipped, border="replicate")
    assert inside is not None
    pixels = apply("where", _last(inside), pixels, Tensor(0.0, dtype=pixels.dtype, device=pixels.device))
    pixels = apply("reshape", pixels, shape=(n, *size, samples * samples, x.shape[1]))
    cells_of = apply("mean" if mode == "avg" else "max", pixels, axis=(3,), keepdims=False)
    return apply("transpose", cells_of, perm=(0, 3, 1, 2))


def _largest_part(x: Tensor, batch: Tensor, ys: Tensor, xs: Tensor, *, border: str) -> Tensor:
    """As `sample`, but of the four weighed pixels the largest, not their sum."""
    parts = []
    for yi, wy in _neighbours(ys, "linear"):
        for xi, wx in _neighbours(xs, "linear"):
            rows, columns = (_into(i, n, border) for i, n in zip((yi, xi), x.shape[2:], strict=True))
            pixel = apply("index", x, batch, rows, columns, pattern=("i", (None, None, None), "i", "i"))
            assert wy is not None and wx is not None
            parts.append(pixel * _last(wy * wx))
    return functools.reduce(lambda a, b: apply("maximum", a, b), parts)


def _fractions(cells: tuple[int, int, int, int], axis: int, like: Tensor) -> Tensor:
    """Where the samples of all cells lie on an axis of a region, as parts of its length: [1, oh*ow*sy*sx]."""
    grid = np.indices(cells)
    part = (grid[axis] + (grid[axis + 2] + 0.5) / cells[axis + 2]) / cells[axis]
    return Tensor(part.reshape(1, -1).astype(np.float32), device=like.device)


@public(home=_VISION)
def correlation(
    data1: TensorLike,
    data2: TensorLike,
    kernel_size: int = 1,
    max_displacement: int = 1,
    stride1: int = 1,
    stride2: int = 1,
    pad_size: int = 0,
    is_multiply: bool = True,
) -> Tensor:
    """Mean products (or absolute differences) of patches of data1 and moved patches of data2, both [N,C,H,W].

    One channel of the result per move of up to max_displacement in steps of stride2.
    Source: Dosovitskiy et al., "FlowNet", 2015.
    """
    op = "correlation"
    a, b = operands(op, floating(data1), floating(data2))
    _picture(op, a)
    if a.shape != b.shape:
        raise ShapeError(f"{op}: data1 has shape {a.shape}, data2 {b.shape}; expected one shape")
    if kernel_size < 1 or kernel_size % 2 == 0 or min(stride1, stride2) < 1 or min(max_displacement, pad_size) < 0:
        raise OptionError(f"{op}: kernel_size {kernel_size} must be odd, strides at least 1, the others at least 0")
    widths = ((0, 0), (0, 0), (pad_size, pad_size), (pad_size, pad_size))
    a, b = (apply("pad", v, widths=widths, mode="constant", value=0.0) for v in (a, b))
    reach = max_displacement // stride2
    border = max_displacement + kernel_size // 2
    lengths = [n - 2 * border for n in a.shape[2:]]
    if min(lengths) < 1:
        raise ShapeError(f"{op}: inputs {a.shape} (padded) are not larger than twice border {border}; enlarge pad_size")
    channels: list[Tensor] = []
    moves = [stride2 * k for k in range(-reach, reach + 1)]
    options = (kernel_size, max_displacement, lengths, stride1, is_multiply)
    for dy in moves:
        channels += [_compared(a, b, dy, dx, *options) for dx in moves]
    return apply("concat", *channels, axis=1) / float(a.shape[1] * kernel_size**2)


def _compared(
    a: Tensor, b: Tensor, dy: int, dx: int, kernel: int, reach: int, lengths: list[int], stride: int, multiply: bool
) -> Tensor:
    """Sums over patches of a and patches of b moved by (dy, dx), [N,1,oh,ow]."""
    total = None
    for ky, kx in np.ndindex(kernel, kernel):
        one = _patches(a, reach + ky, reach + kx, lengths, stride)
        other = _patches(b, reach + ky + dy, reach + kx + dx, lengths, stride)
        part = one * other if multiply else apply("abs", one - other)
        total = part if total is None else total + part
    assert total is not None
    return apply("sum", total, axis=(1,), keepdims=True)


def _patches(x: Tensor, top: int, left: int, lengths: list[int], stride: int) -> Tensor:
    return x[:, :, top : top + lengths[0] : stride, left : left + lengths[1] : stride]


@public(home=_VISION)
def nvof(src: TensorLike, precision: int = 1) -> Tensor:
    """Optical flow by NVIDIA's flow engine, which is left out: always raises DeviceError."""
    raise DeviceError("nvof: NVIDIA's optical flow engine is not supported; use F.vision.correlation in a flow network")
