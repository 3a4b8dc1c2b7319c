"""Pooling, and the sliding windows its gradients are written with."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.errors import OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import MOVES_INTEGERS, ErrorSample, OnnxRule, QuantRule, Sample, apply, define, no_onnx, public
from megengine.kernels.reference import conv as reference
from megengine.kernels.reference.order import sum_of_windows
from megengine.ops import quantized_calls
from megengine.ops.common import Integers, as_tensor, choice, pad_pairs, pair, refuse_quantized
from megengine.ops.conv import check_window
from megengine.ops.simulation import simulated
from megengine.tensor import Tensor

_HOME = "megengine.functional.nn"


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).permutation(math.prod(shape)).reshape(shape) / max(1, math.prod(shape))


def _out(op: str, x: TensorSpec, kernel: Any, stride: Any, padding: Any) -> tuple[int, int]:
    if x.ndim != 4:
        raise ShapeError(f"{op}: input has shape {x.shape}; expected [N,C,H,W]")
    if any(max(p) >= k for p, k in zip(padding, kernel, strict=True)):
        raise OptionError(f"{op}: padding {padding} must be smaller than the window {kernel}")
    out = check_window(op, x.shape[2:], kernel, stride, padding, (1, 1))
    return out[0], out[1]


def _pool_infer(op: str):
    def infer(x: TensorSpec, *, kernel: Any, stride: Any, padding: Any, count_include_pad: bool = True) -> TensorSpec:
        if op == "avg_pool2d":
            refuse_quantized(op, x)
        return TensorSpec((*x.shape[:2], *_out(op, x, kernel, stride, padding)), x.dtype, x.device)

    return infer


def _window_attrs(kernel: Any, stride: Any, padding: Any) -> dict[str, Any]:
    return {"kernel": kernel, "stride": stride, "padding": padding}


_CASES = [
    ((2, 3, 6, 6), _window_attrs((2, 2), (2, 2), ((0, 0), (0, 0)))),
    ((1, 2, 7, 5), _window_attrs((3, 3), (2, 2), ((1, 1), (1, 1)))),
    ((1, 2, 7, 5), _window_attrs((3, 2), (1, 2), ((0, 1), (1, 0)))),
    ((0, 2, 4, 4), _window_attrs((2, 2), (2, 2), ((0, 0), (0, 0)))),
]


def lowest(dtype: np.dtype) -> float:
    return -np.inf if dtype.kind == "f" or dtype.kind == "V" else float(np.iinfo(dtype).min)


def _max_pool(x: np.ndarray, kernel: Any, stride: Any, padding: Any) -> np.ndarray:
    return reference.windows(x, kernel, stride, padding, value=lowest(x.dtype)).max((-2, -1))


def _max_backward_infer(ct: TensorSpec, x: TensorSpec, *, kernel: Any, stride: Any, padding: Any) -> TensorSpec:
    op = "max_pool2d_backward"
    refuse_quantized(op, ct, x)
    expected = (*x.shape[:2], *_out(op, x, kernel, stride, padding))
    if ct.shape != expected:
        raise ShapeError(f"{op}: the cotangent has shape {ct.shape}; expected {expected}")
    return x


def _max_backward(ct: np.ndarray, x: np.ndarray, kernel: Any, stride: Any, padding: Any) -> np.ndarray:
    """A window's cotangent goes to its first largest element."""
    cols = reference.windows(x, kernel, stride, padding, value=lowest(x.dtype))
    where = cols.reshape(*cols.shape[:4], math.prod(kernel)).argmax(-1)
    share = np.zeros((*cols.shape[:4], math.prod(kernel)), ct.dtype)
    np.put_along_axis(share, where[..., None], ct[..., None], -1)
    return reference.fold(share.reshape(cols.shape), x.shape[2:], stride, padding, (1, 1))


def _max_backward_vjp(ctx: Any, g: Tensor) -> tuple:
    """Linear in the cotangent: from every window, g of its largest element."""
    x, k = ctx.inputs[1], math.prod(ctx.attrs["kernel"])
    cols = apply("unfold", x, value=-np.inf, dilation=(1, 1), **ctx.attrs)
    flat = (*cols.shape[:4], k)
    where = apply("argmax", apply("reshape", cols, shape=flat), axis=4, keepdims=False)
    mask = apply("cast", apply("one_hot", where, depth=k), dtype=g.dtype)
    chosen = apply("reshape", apply("unfold", g, value=0.0, dilation=(1, 1), **ctx.attrs), shape=flat) * mask
    return apply("sum", chosen, axis=(4,), keepdims=False), None


def _pool_errors() -> Iterator[ErrorSample]:
    x = np.zeros((1, 2, 4, 4), np.float32)
    yield ErrorSample((x[0],), _window_attrs((2, 2), (1, 1), ((0, 0), (0, 0))), ShapeError, "expected .N,C,H,W.")
    yield ErrorSample((x,), _window_attrs((2, 2), (1, 1), ((2, 0), (0, 0))), OptionError, "smaller than the window")
    yield ErrorSample((x,), _window_attrs((5, 5), (1, 1), ((0, 0), (0, 0))), ShapeError, "does not fit")


_ONNX = {"kernel": "kernel_shape", "stride": "strides", "padding": "pads"}
define(
    "max_pool2d",
    _pool_infer("max_pool2d"),
    _max_pool,
    lambda ctx, ct: (apply("max_pool2d_backward", ct, ctx.inputs[0], **ctx.attrs),),
    OnnxRule("MaxPool", _ONNX, read=False),
    lambda: [Sample((_x(*s),), a) for s, a in _CASES],
    _pool_errors,
    quant=MOVES_INTEGERS,
    moves=True,
)


define(
    "max_pool2d_backward",
    _max_backward_infer,
    _max_backward,
    _max_backward_vjp,
    no_onnx("gradient of max_pool2d"),
    lambda: [Sample((_x(*s[:2], *_out("", TensorSpec(s, np.dtype("f4")), **a)), _x(*s)), a) for s, a in _CASES],
    lambda: [ErrorSample((_x(1, 2, 3, 3), _x(1, 2, 4, 4)), _CASES[0][1], ShapeError, "the cotangent has shape")],
)


def _counts(size: Any, kernel: Any, stride: Any, padding: Any, include: bool) -> np.ndarray:
    if include or not any(map(any, padding)):
        return np.asarray(float(math.prod(kernel)))
    return reference.windows(np.ones((1, 1, *size)), kernel, stride, padding).sum((-2, -1))


def _avg_pool(x: np.ndarray, kernel: Any, stride: Any, padding: Any, count_include_pad: bool) -> np.ndarray:
    total = sum_of_windows(reference.windows(x, kernel, stride, padding))
    counts = _counts(x.shape[2:], kernel, stride, padding, count_include_pad)
    mean = total / (counts if x.dtype.kind in "iu" else counts.astype(x.dtype))  # int8 does not hold every count
    if x.dtype.kind in "iu":  # MegEngine rounds half away from zero, and truncates where padding counts
        return np.trunc(mean if count_include_pad else mean + np.copysign(0.5, mean))
    return mean


def _avg_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    x, a = ctx.inputs[0], ctx.attrs
    counts = _counts(x.shape[2:], a["kernel"], a["stride"], a["padding"], a["count_include_pad"])
    share = ct / Tensor(counts, dtype=ct.dtype, device=ct.device)
    cols = apply("broadcast_to", apply("reshape", share, shape=(*ct.shape, 1, 1)), shape=(*ct.shape, *a["kernel"]))
    return (apply("fold", cols, size=x.shape[2:], stride=a["stride"], padding=a["padding"], dilation=(1, 1)),)


define(
    "avg_pool2d",
    _pool_infer("avg_pool2d"),
    _avg_pool,
    _avg_vjp,
    OnnxRule("AveragePool", {**_ONNX, "count_include_pad": "count_include_pad"}, read=False),
    lambda: [Sample((_x(*s),), {**a, "count_include_pad": i}) for s, a in _CASES for i in (True, False)],
    quant=QuantRule("pool", "qavg_pool2d", non_negative="inherit"),
)


def _unfold_infer(x: TensorSpec, *, kernel: Any, stride: Any, padding: Any, dilation: Any, value: float) -> TensorSpec:
    if x.ndim != len(kernel) + 2:
        raise ShapeError(f"unfold: input has shape {x.shape}; expected [N,C,...] for a window of {kernel}")
    out = check_window("unfold", x.shape[2:], kernel, stride, padding, dilation)
    return TensorSpec((*x.shape[:2], *out, *kernel), x.dtype, x.device)


def _fold_infer(x: TensorSpec, *, size: Any, stride: Any, padding: Any, dilation: Any) -> TensorSpec:
    behind = 2 + len(size)
    if x.ndim != behind + len(size) or x.shape[2:behind] != check_window(
        "fold", size, x.shape[behind:], stride, padding, dilation
    ):
        raise ShapeError(f"fold: windows of shape {x.shape} do not tile size {size}; expected [N,C,oh,ow,kh,kw]")
    return TensorSpec((*x.shape[:2], *size), x.dtype, x.device)


def _unfold(x: np.ndarray, kernel: Any, stride: Any, padding: Any, dilation: Any, value: float) -> np.ndarray:
    return np.ascontiguousarray(reference.windows(x, kernel, stride, padding, dilation, value))


def _geometry(ctx: Any) -> dict[str, Any]:
    return {name: ctx.attrs[name] for name in ("stride", "padding", "dilation")}


_PLAIN = {"dilation": (1, 1)}
_FOLD = {"size": (7, 5), "stride": (2, 2), "padding": ((1, 1), (1, 1))}


define(
    "unfold",
    _unfold_infer,
    _unfold,
    lambda ctx, ct: (apply("fold", ct, size=ctx.inputs[0].shape[2:], **_geometry(ctx)),),
    no_onnx("a view of windows; ONNX has none"),
    lambda: [Sample((_x(*s),), {**a, **_PLAIN, "value": 0.0}) for s, a in _CASES],
)
define(
    "fold",
    _fold_infer,
    lambda x, **attrs: reference.fold(x, **attrs),
    lambda ctx, ct: (
        apply("unfold", ct, kernel=ctx.inputs[0].shape[2 + len(ctx.attrs["size"]) :], value=0.0, **_geometry(ctx)),
    ),
    no_onnx("adjoint of unfold"),
    lambda: [
        Sample((_x(1, 2, 4, 3, 3, 3),), {**_FOLD, **_PLAIN}),
        Sample((_x(1, 2, 3, 3, 3, 2),), {**_FOLD, "dilation": (2, 1), "padding": ((1, 1), (1, 0))}),
    ],
    lambda: [ErrorSample((_x(1, 2, 3, 3, 3, 3),), {**_FOLD, **_PLAIN}, ShapeError, "fold: .* do not tile size")],
)


def _arguments(op: str, kernel_size: Any, stride: Any, padding: Any) -> dict[str, Any]:
    kernel = pair(op, "kernel_size", kernel_size)
    return _window_attrs(kernel, kernel if stride is None else pair(op, "stride", stride), pad_pairs(op, padding))


@public(home=_HOME, by_spec=True)
def max_pool2d(inp: TensorLike, kernel_size: Integers, stride: Integers | None = None, padding: Integers = 0) -> Tensor:
    """Largest element of each window of inp [N,C,H,W]; the stride defaults to the window."""
    return apply("max_pool2d", as_tensor(inp), **_arguments("max_pool2d", kernel_size, stride, padding))


AVERAGES = {"average": True, "average_count_exclude_padding": False}  # mode -> whether padding counts


@public(home=_HOME, quantized=quantized_calls.averaged)
@simulated(quantized_calls.averaged)
def avg_pool2d(
    inp: TensorLike,
    kernel_size: Integers,
    stride: Integers | None = None,
    padding: Integers = 0,
    mode: str = "average_count_exclude_padding",
) -> Tensor:
    """Mean of each window of inp [N,C,H,W]; `mode` "average" counts the padding, the default does not.

    Means of integers are rounded half away from zero; with mode "average" they are truncated, as in MegEngine.
    """
    mode = choice("avg_pool2d", "mode", mode, tuple(AVERAGES), any_case=True)
    attrs = _arguments("avg_pool2d", kernel_size, stride, padding)
    return apply("avg_pool2d", as_tensor(inp), count_include_pad=AVERAGES[mode], **attrs)


def _adaptive(op: str, inp: Any, oshp: Any, **extra: Any) -> Tensor:
    """MegEngine's definition: stride = length // out, and one window that reaches the end exactly."""
    x, out = as_tensor(inp), pair(op, "oshp", oshp)
    if x.ndim != 4:
        raise ShapeError(f"adaptive_{op}: input has shape {x.shape}; expected [N,C,H,W]")
    if any(not 0 < o <= n for o, n in zip(out, x.shape[2:], strict=True)):
        raise OptionError(
            f"adaptive_{op}: oshp is {out} for input {x.shape}; expected at most {x.shape[2:]}, at least 1"
        )
    stride = tuple(n // o for n, o in zip(x.shape[2:], out, strict=True))
    kernel = tuple(n - (o - 1) * s for n, o, s in zip(x.shape[2:], out, stride, strict=True))
    return apply(op, x, kernel=kernel, stride=stride, padding=((0, 0), (0, 0)), **extra)


@public(home=_HOME, quantized=quantized_calls.averaged)
@simulated(quantized_calls.averaged)
def adaptive_avg_pool2d(inp: TensorLike, oshp: Integers) -> Tensor:
    """Means over an oshp grid of inp [N,C,H,W]; where lengths do not divide, the windows overlap."""
    if pair("adaptive_avg_pool2d", "oshp", oshp) == (1, 1):
        return apply("mean", as_tensor(inp), axis=(2, 3), keepdims=True)
    return _adaptive("avg_pool2d", inp, oshp, count_include_pad=True)


@public(home=_HOME, by_spec=True)
def adaptive_max_pool2d(inp: TensorLike, oshp: Integers) -> Tensor:
    """Largest elements over an oshp grid of inp [N,C,H,W]."""
    return _adaptive("max_pool2d", inp, oshp)
