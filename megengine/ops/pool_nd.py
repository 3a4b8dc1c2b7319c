"""Pooling over any number of spatial axes, with gaps in the window: what `max_pool2d` and `avg_pool2d` are not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.errors import OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import ONNX_WRITER, ErrorSample, Sample, apply, define, not_differentiable
from megengine.kernels.reference import conv as reference
from megengine.kernels.reference.order import sum_of_windows
from megengine.ops.common import BOOL, masked, refuse_quantized
from megengine.ops.conv import check_window
from megengine.ops.pool import lowest
from megengine.tensor import Tensor

_GEOMETRY = ("kernel", "stride", "padding", "dilation")


def _out(op: str, x: TensorSpec, kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    refuse_quantized(op, x)
    if x.ndim != len(kernel) + 2:
        raise ShapeError(f"{op}: input has shape {x.shape}; expected [N,C,...] for a window of {kernel}")
    out = check_window(op, x.shape[2:], kernel, stride, padding, dilation)
    if any(max(p) > d * (k - 1) for p, k, d in zip(padding, kernel, dilation, strict=True)):
        raise OptionError(f"{op}: padding {padding} must be smaller than the window {kernel}, dilation {dilation}")
    return out


def _infer(
    x: TensorSpec, *, largest: bool, kernel: Any, stride: Any, padding: Any, dilation: Any, count_include_pad: bool
) -> TensorSpec:
    return TensorSpec((*x.shape[:2], *_out("pool", x, kernel, stride, padding, dilation)), x.dtype, x.device)


def pool_counts(size: Any, *, kernel: Any, count_include_pad: bool, largest: bool = False, **window: Any) -> np.ndarray:
    """By what the sum of each window is divided: the elements of the window, or those that lie inside."""
    if count_include_pad:
        return np.asarray(float(math.prod(kernel)))
    return reference.windows(np.ones((1, 1, *size)), kernel, **window).sum(tuple(range(-len(kernel), 0)))


def _pool(x: np.ndarray, **attrs: Any) -> np.ndarray:
    window = {name: attrs[name] for name in _GEOMETRY}
    axes = tuple(range(-len(window["kernel"]), 0))
    x = x.reshape(x.shape[axes[0] - 2 :])
    if attrs["largest"]:
        return reference.windows(x, **window, value=lowest(x.dtype)).max(axes)
    total = sum_of_windows(reference.windows(x, **window), len(axes))
    counts = pool_counts(x.shape[2:], **attrs)
    return (total / (counts if x.dtype.kind in "iu" else counts.astype(x.dtype))).astype(x.dtype)


def _vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    (x,), window = ctx.inputs, {name: ctx.attrs[name] for name in _GEOMETRY}
    kernel, size = window.pop("kernel"), x.shape[2:]
    flat = (*ct.shape, math.prod(kernel))
    if ctx.attrs["largest"]:
        cols = apply("reshape", apply("unfold", x, kernel=kernel, value=lowest(x.dtype), **window), shape=flat)
        where = apply("one_hot", apply("argmax", cols, axis=ct.ndim, keepdims=False), depth=flat[-1])
        share = masked(apply("reshape", ct, shape=(*ct.shape, 1)), apply("cast", where, dtype=BOOL))
    else:
        each = ct / Tensor(pool_counts(size, **ctx.attrs), dtype=ct.dtype, device=ct.device)
        share = apply("broadcast_to", apply("reshape", each, shape=(*ct.shape, 1)), shape=flat)
    return (apply("fold", apply("reshape", share, shape=(*ct.shape, *kernel)), size=size, **window),)


def _window(kernel: Any, stride: Any, padding: Any, dilation: Any) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}


_CASES = [
    ((2, 3, 7), _window((3,), (2,), ((1, 0),), (2,))),
    ((1, 2, 6, 7), _window((2, 3), (1, 2), ((0, 1), (2, 1)), (2, 2))),
    ((1, 2, 4, 5, 3), _window((2, 3, 2), (2, 1, 1), ((0, 1), (1, 1), (0, 0)), (1, 1, 2))),
    ((0, 2, 4), _window((2,), (1,), ((0, 0),), (1,))),
]


def _values(shape: tuple[int, ...]) -> np.ndarray:
    count = math.prod(shape)
    return np.random.default_rng(list(shape)).permutation(count).reshape(shape) / max(1, count)


def _samples() -> Iterator[Sample]:
    for shape, window in _CASES:
        for largest, include in ((True, False), (False, False), (False, True)):
            yield Sample((_values(shape),), {"largest": largest, "count_include_pad": include, **window})


def _errors() -> Iterator[ErrorSample]:
    x, attrs = np.zeros((1, 2, 5), np.float32), {"largest": True, "count_include_pad": False, **_CASES[0][1]}
    yield ErrorSample((x[0],), attrs, ShapeError, "pool: input has shape")
    yield ErrorSample((x,), {**attrs, "padding": ((5, 0),)}, OptionError, "must be smaller than the window")


define("pool", _infer, _pool, _vjp, ONNX_WRITER, _samples, _errors, lift=dict)


def _indices_infer(x: TensorSpec, *, columns_first: bool, **window: Any) -> TensorSpec:
    shape = (*x.shape[:2], *_out("max_pool_indices", x, **window))
    return TensorSpec(shape, np.dtype(np.int64), x.device)


def _indices(x: np.ndarray, *, columns_first: bool, **window: Any) -> np.ndarray:
    """Places in the flat tensor; with `columns_first` the spatial axes count in reversed order."""
    axes, taps, count = len(window["kernel"]), math.prod(window["kernel"]), math.prod(x.shape[2:])
    places = np.arange(count, dtype=np.int64).reshape(x.shape[2:], order="F" if columns_first else "C")
    planes = count * np.arange(math.prod(x.shape[:2]), dtype=np.int64).reshape(*x.shape[:2], *(1,) * axes)
    cols = reference.windows(x, **window, value=lowest(x.dtype))
    out = cols.shape[: 2 + axes]
    best = cols.reshape(*out, taps).argmax(-1)[..., None]
    there = reference.windows(np.broadcast_to(places, (1, 1, *places.shape)), **window).reshape(1, 1, *out[2:], taps)
    return np.take_along_axis(np.broadcast_to(there, (*out, taps)), best, -1)[..., 0] + planes


define(
    "max_pool_indices",
    _indices_infer,
    _indices,
    not_differentiable("it returns indices"),
    ONNX_WRITER,
    lambda: [
        Sample((_values(shape),), {"columns_first": first, **window})
        for shape, window in _CASES
        for first in (False, True)
    ],
)
