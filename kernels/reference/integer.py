"""The integer specification, executable: docs/integer-arithmetic.md in NumPy. Results are compared with ==.

Shapes are NCHW; padding is ((top, bottom), (left, right)). Integer arrays hold stored values; zero points are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.kernels.reference.conv import Pairs, out_length, windows

f32 = np.float32
_EXACT_F32 = 2**24  # float32 holds every integer up to here


def multiplier(s_x: Any, s_w: Any, s_y: Any) -> np.ndarray:
    """M = fl32(fl32(s_x * s_w) / s_y), one per output channel."""
    return (f32(s_x) * np.asarray(s_w, f32)) / f32(s_y)


def product_multiplier(s_a: Any, s_r: Any, s_y: Any) -> float:
    """The factor of a product of two computed tensors: `multiplier`, but at least the smallest normal number.

    Values of dead branches are so small that the product of their scales is no float32 number; that factor times the
    largest sum is still no part of a step.
    """
    return float(np.maximum(multiplier(s_a, s_r, s_y), np.finfo(f32).tiny))


def int_bias(bias: np.ndarray, s_x: Any, s_w: Any) -> np.ndarray:
    """Bias in accumulator units: rint(bias / (s_x * s_w)), whole numbers in float64, which int32 may not hold."""
    return np.rint(np.asarray(bias, np.float64) / (np.float64(f32(s_x)) * np.asarray(s_w, f32).astype(np.float64)))


def float_bias(bias: np.ndarray, s_y: Any) -> np.ndarray:
    """Bias in output steps, float32: fl32(bias / s_y) from float64."""
    return (np.asarray(bias, np.float64) / np.float64(f32(s_y))).astype(f32)


def cut16(value: Any) -> np.float32:
    """A ratio rounded to 16 significant bits: its product with any 8-bit magnitude is exact in float32."""
    mantissa, exponent = np.frexp(np.float64(value))
    return f32(np.ldexp(np.rint(mantissa * 65536.0), int(exponent) - 16))


def ratio(source: QuantizedDType, target: QuantizedDType) -> float:
    """s_source / s_target with 16 significant bits."""
    return float(cut16(source.only_scale / target.only_scale))


def ends(dtype: QuantizedDType | None) -> dict[str, int]:
    """Bounds of a result, relative to its zero point; 0 for float32."""
    lo, hi, zero = (0, 0, 0) if dtype is None else (dtype.qmin, dtype.qmax, dtype.zero_point)
    return {"lo": lo - zero, "hi": hi - zero}


def along(values: Any, axis: int | None, ndim: int) -> np.ndarray:
    """One number, or one for each place of an axis, as float32 that broadcast."""
    array = np.asarray(values, f32)
    return array if axis is None else array.reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def quantize(
    x: np.ndarray, s: Any, z: int, qmin: int, qmax: int, storage: Any = np.int32, axis: int | None = None
) -> np.ndarray:
    """Stored integers of real x: a true division, clamp, rint half even, + z. NaN becomes qmin."""
    x = np.asarray(x, f32)
    with np.errstate(over="ignore", invalid="ignore"):
        t = x / along(s, axis, x.ndim)
    # the ends of 32 bits are no float32 numbers
    real, whole = (np.float64, np.int64) if qmax - qmin >= 1 << 24 else (np.float32, np.int32)
    t = np.fmin(np.fmax(t, real(qmin - z)), real(qmax - z))
    return np.asarray(np.rint(t).astype(whole) + z, storage)  # arithmetic of 0-d arrays gives scalars


def dequantize(q: np.ndarray, s: Any, z: int, axis: int | None = None) -> np.ndarray:
    """Real values: fl32(q - z) * s."""
    return np.asarray((q.astype(np.int32) - z).astype(f32) * along(s, axis, q.ndim))


def centred_at(x: np.ndarray, z: int) -> np.ndarray:
    """Integers less their zero point, of a type that holds products of two such: int32 of 8 bits, else int64."""
    return x.astype(np.int32 if x.dtype.itemsize == 1 else np.int64) - z


def convert(x: np.ndarray, factor: Any, z: int, qmin: int, qmax: int, storage: Any) -> np.ndarray:
    """MegEngine's conversion of real x: t = x * factor, then trunc(t + copysign(0.5, t)), both in float32, clamp, + z.

    NaN becomes qmin. `factor` is fl32(1 / s) where x holds real values, and broadcasts.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        t = np.asarray(x, f32) * factor
        t = np.trunc(t + np.copysign(f32(0.5), t)).astype(np.float64)
    t = np.fmin(np.fmax(t, qmin - z), qmax - z)
    return (t.astype(np.int64) + z).astype(storage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How an accumulator becomes an output. dtype float32 means: no clamp, no rounding."""

    lo: int = 0
    hi: int = 255
    z_y: int = 0
    dtype: Any = np.uint8


def _finish(t: np.ndarray, out: Output) -> np.ndarray:
    t = np.asarray(t)  # of numbers NumPy makes scalars, which it cannot write to
    np.maximum(t, f32(out.lo), out=t)
    np.minimum(t, f32(out.hi), out=t)
    np.rint(t, out=t)
    return (t.astype(np.int32) + out.z_y).astype(out.dtype)


def epilogue(
    acc: np.ndarray,
    b: np.ndarray,
    M: np.ndarray,
    B: np.ndarray,
    out: Output,
    *,
    axis: int = 1,
    residual: np.ndarray | None = None,
    ratio: float = 0.0,
) -> np.ndarray:
    """Int32 accumulators with channels on `axis` -> outputs. `residual` holds r - z_r (int32)."""
    shape = [-1 if i == axis % acc.ndim else 1 for i in range(acc.ndim)]
    t = (acc + b.reshape(shape)).astype(f32)
    t *= M.astype(f32).reshape(shape)
    t += B.astype(f32).reshape(shape)
    if residual is not None:
        t += residual.astype(f32) * f32(ratio)
    return t if np.dtype(out.dtype) == np.float32 else _finish(t, out)


def _product_dtype(w: np.ndarray, x: np.ndarray) -> type:
    """float32 where every partial sum of w [.., K] with x is below 2**24 and therefore exact, else float64."""
    if not x.size or not w.size:
        return np.float32
    largest = int(np.abs(w.astype(np.int64)).sum(-1).max()) * int(np.abs(x).max())
    return np.float32 if largest < _EXACT_F32 else np.float64


def conv_acc(
    x: np.ndarray,
    w: np.ndarray,
    *,
    stride: tuple[int, int],
    padding: Pairs,
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
    z_x: int = 0,
) -> np.ndarray:
    """Exact sums of (x - z_x) * w: x [N,C,H,W], w [O,C/g,kh,kw] -> [N,O,oh,ow], int32, int64 of a 16-bit x."""
    n, c = x.shape[:2]
    o, ci, kh, kw = w.shape
    size = tuple(out_length(x.shape[2 + i], w.shape[2 + i], stride[i], padding[i], dilation[i]) for i in range(2))
    real = np.pad(centred_at(x, z_x), ((0, 0), (0, 0), *padding))
    if ci == 1 and o == groups:
        oh, ow = size
        acc = np.zeros((n, o, oh, ow), real.dtype)
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                top, left = i * dilation[0], j * dilation[1]
                tap = real[:, :, top : top + stride[0] * (oh - 1) + 1 : stride[0]]
                tap = tap[..., left : left + stride[1] * (ow - 1) + 1 : stride[1]]
                acc += tap * w[None, :, :1, i, j, None].astype(np.int32)
        return acc
    rows = w.reshape(groups, o // groups, ci * kh * kw)
    dtype = _product_dtype(rows, real)
    acc = np.empty((n, o, *size), real.dtype)
    none = ((0, 0), (0, 0))
    for image in range(n):  # one picture at a time: the unfolded picture is kh*kw times as large
        win = windows(real[image : image + 1].astype(dtype), (kh, kw), stride, none, dilation)[0]
        cols = win.transpose(0, 3, 4, 1, 2).reshape(groups, c // groups * kh * kw, -1)
        acc[image] = np.matmul(rows.astype(dtype), cols).reshape(o, *size)
    return acc


def linear_acc(x: np.ndarray, w: np.ndarray, *, z_x: int = 0) -> np.ndarray:
    """Exact sums of (x - z_x) * w: x [..., K], w [O, K] -> [..., O], int32, int64 of a 16-bit x."""
    real = centred_at(x, z_x)
    dtype = _product_dtype(w, real)
    return np.matmul(real.astype(dtype), w.T.astype(dtype)).astype(real.dtype)


def matmul_acc(a: np.ndarray, r: np.ndarray, *, z_a: int = 0, z_r: int = 0) -> np.ndarray:
    """Exact sums of (a - z_a) * (r - z_r): a [..., M, K], r [..., K, N], stacks broadcast -> [..., M, N].

    They are int32 of 8-bit operands, else int64.
    """
    real, other = centred_at(a, z_a), centred_at(r, z_r)
    dtype = _product_dtype(np.swapaxes(other, -1, -2), real)
    return np.matmul(real.astype(dtype), other.astype(dtype)).astype(np.result_type(real, other))


# ---------------------------------------------------------------- ops


def matmul(a: np.ndarray, r: np.ndarray, out: Output, *, m: float, z_a: int = 0, z_r: int = 0) -> np.ndarray:
    """The product of two computed tensors: exact sums times m, clamped and rounded."""
    t = matmul_acc(a, r, z_a=z_a, z_r=z_r).astype(f32) * f32(m)
    return t if np.dtype(out.dtype) == np.float32 else _finish(t, out)


def add(a: np.ndarray, r: np.ndarray, out: Output, *, ra: float, rb: float, z_a: int = 0, z_r: int = 0) -> np.ndarray:
    """(a - z_a) * ra + (r - z_r) * rb, clamped and rounded. ra and rb come from cut16."""
    t = (a.astype(np.int32) - z_a).astype(f32) * f32(ra)
    return _finish(t + (r.astype(np.int32) - z_r).astype(f32) * f32(rb), out)


def multiply(a: np.ndarray, r: np.ndarray, out: Output, *, m: float, z_a: int = 0, z_r: int = 0) -> np.ndarray:
    """(a - z_a) * (r - z_r), exact, times m = multiplier(s_a, s_r, s_y), clamped and rounded."""
    product = centred_at(a, z_a) * centred_at(r, z_r)
    return _finish(product.astype(f32) * f32(m), out)


def extremum(
    choose: Callable[..., np.ndarray],
    a: np.ndarray,
    r: np.ndarray,
    out: Output,
    *,
    ra: float,
    rb: float,
    z_a: int = 0,
    z_r: int = 0,
) -> np.ndarray:
    """The larger or smaller (`choose`) of (a - z_a) * ra and (r - z_r) * rb, which are exact, clamped and rounded."""
    t = choose((a.astype(np.int32) - z_a).astype(f32) * f32(ra), (r.astype(np.int32) - z_r).astype(f32) * f32(rb))
    return _finish(t, out)


def requantize(x: np.ndarray, out: Output, *, ratio: float, z_x: int = 0) -> np.ndarray:
    """The same real values on another scale: (x - z_x) * ratio, clamped and rounded."""
    return _finish((x.astype(np.int32) - z_x).astype(f32) * f32(ratio), out)


def _average(total: np.ndarray, count: Any, s_x: float, s_y: float, out: Output) -> np.ndarray:
    m = (f32(s_x) / f32(s_y)) / np.asarray(count, f32)
    return _finish(total.astype(f32) * m, out)


def avg_pool2d(
    x: np.ndarray,
    out: Output,
    *,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: Pairs,
    count_include_pad: bool,
    s_x: float,
    s_y: float,
    z_x: int = 0,
) -> np.ndarray:
    """Mean of each window of x [N,C,H,W]: integer sum, one float32 multiplier."""
    total = windows(x.astype(np.int32) - z_x, kernel, stride, padding).sum((-2, -1), dtype=np.int64)
    count: Any = kernel[0] * kernel[1]
    if not count_include_pad:
        count = windows(np.ones((1, 1, *x.shape[2:]), np.int32), kernel, stride, padding).sum((-2, -1))
    return _average(total, count, s_x, s_y, out)


def mean(
    x: np.ndarray,
    out: Output,
    *,
    axis: tuple[int, ...] | None,
    keepdims: bool,
    s_x: float,
    s_y: float,
    z_x: int = 0,
    summed: bool = False,
) -> np.ndarray:
    """Mean over axes, or their sum: integer sum, one float32 multiplier."""
    total = (x.astype(np.int32) - z_x).sum(axis=axis, keepdims=keepdims, dtype=np.int64)
    count = 1 if summed else x.size // max(total.size, 1)
    return _average(np.asarray(total), max(count, 1), s_x, s_y, out)


def lookup(x: np.ndarray, table: np.ndarray, axis: int | None = None) -> np.ndarray:
    """table[x - storage minimum], elementwise; with an axis each place along it has a table of its own."""
    index = x.astype(np.int32) - np.iinfo(x.dtype).min
    if axis is None:
        return table[index]
    return table[along_places(len(table), axis, x.ndim), index]


def along_places(n: int, axis: int, ndim: int) -> np.ndarray:
    """The places 0 to n - 1 along an axis, in a shape that broadcasts."""
    return np.arange(n).reshape([-1 if i == axis % ndim else 1 for i in range(ndim)])


def resize(x: np.ndarray, taps: Sequence[tuple[np.ndarray, np.ndarray]], out: Output) -> np.ndarray:
    """A picture [N,C,...] in another size, on its own scale; `taps` are indices and whole weights along each axis."""
    acc = x.astype(np.int64) - out.z_y
    for k, (index, weight) in enumerate(taps):
        moved = np.moveaxis(acc, k + 2, -1)
        acc = np.moveaxis((moved[..., index] * weight).sum(-1), -1, k + 2)
    steps = np.rint(np.ldexp(acc.astype(np.float64), -resize_bits(len(taps)) * len(taps)))
    return np.ascontiguousarray((np.clip(steps, out.lo, out.hi) + out.z_y).astype(out.dtype))


def resize_bits(axes: int) -> int:
    """Bits of the weights along each axis: the sums of all axes fit int32."""
    return 21 // axes


def whole_weights(weight: np.ndarray, axes: int) -> np.ndarray:
    """Weights [places, taps] of sum 1 as integers of sum 2**bits: the largest takes what rounding leaves over."""
    one = 1 << resize_bits(axes)
    whole = np.rint(weight * one).astype(np.int64)
    np.put_along_axis(whole, weight.argmax(-1)[:, None], 0, -1)
    np.put_along_axis(whole, weight.argmax(-1)[:, None], one - whole.sum(-1, keepdims=True), -1)
    return whole


# ---------------------------------------------------------------- rows

_SOFTMAX_ONE = 2**20  # what exp(0) is in the table


def softmax_table(s_x: Any, entries: int = 256) -> np.ndarray:
    """Exp of 0, 1, ... steps below the largest value, int32 [entries]: rint(2**20 * exp(-d * s_x)) in float64."""
    return np.rint(_SOFTMAX_ONE * np.exp(-np.arange(entries) * np.float64(f32(s_x)))).astype(np.int32)


def softmax(x: np.ndarray, table: np.ndarray, out: Output, *, axis: int, s_y: float) -> np.ndarray:
    """Each exp divided by their exact sum: one float32 factor for all values along the axis."""
    if not x.size:
        return x.astype(out.dtype)
    x = x.astype(np.int32)
    e = table[x.max(axis, keepdims=True) - x]
    r = (f32(1) / f32(s_y)) / e.sum(axis, keepdims=True, dtype=np.int64).astype(f32)
    return _finish(e.astype(f32) * r, out)


def normalize(
    x: np.ndarray, G: np.ndarray, B: np.ndarray, out: Output, *, axes: int, E: float, centred: bool, z_x: int = 0
) -> np.ndarray:
    """X over the last `axes` axes, divided by its deviation there, times G, plus B, of the shape of these axes.

    The sums are exact integers; E is added to the variance, both in steps of x. Without `centred` the mean counts as 0.
    """
    shape, n = x.shape, int(np.prod(x.shape[x.ndim - axes :]))
    c = x.reshape(-1, n).astype(np.int64) - z_x if x.size else np.zeros((0, n), np.int64)
    total = c.sum(1, keepdims=True) if centred else np.zeros((len(c), 1), np.int64)
    variance = (n * (c * c).sum(1, keepdims=True) - total * total).astype(np.float64) / np.float64(n * n)
    k = (1 / np.sqrt(variance + np.float64(E)) / np.float64(n)).astype(f32)
    t = (n * c - total).astype(f32) * k
    t *= G.reshape(-1)
    t += B.reshape(-1)
    return _finish(t, out).reshape(shape)
