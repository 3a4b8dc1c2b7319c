"""Softmax and normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.calls import shown
from megengine.core.dtype import quint8
from megengine.core.errors import ArgumentError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.types import TensorLike
from megengine.dispatch import (
    FLOAT_ONLY,
    ONNX_WRITER,
    ErrorSample,
    OnnxRule,
    QuantRule,
    Sample,
    apply,
    define,
    no_onnx,
    public,
    zero_gradient,
)
from megengine.dispatch.refusal import fits
from megengine.kernels.reference import functions, integer
from megengine.kernels.reference.order import in_order
from megengine.ops.common import (
    Axes,
    as_tensor,
    choice,
    finite,
    floating,
    lift_axes,
    names_only_axis,
    noise,
    normalize_axes,
    normalize_axis,
    refuse_quantized,
)
from megengine.ops.creation import zeros_like
from megengine.ops.reduce import reduce
from megengine.tensor import Tensor

_HOME = "megengine.functional.nn"


def _infer(name: str):
    def infer(x: TensorSpec, *, axis: int) -> TensorSpec:
        refuse_quantized(name, x)
        normalize_axis(name, axis, x.ndim)
        return x

    return infer


def _softmax(x: np.ndarray, axis: int) -> np.ndarray:
    x = in_order(x)
    e = functions.exp_of_distance(x - np.maximum.reduce(x, axis, keepdims=True)) if x.size else x
    return e / np.add.reduce(e, axis, keepdims=True)  # x.sum() does the same with more overhead


def _log_softmax(x: np.ndarray, axis: int) -> np.ndarray:
    x = in_order(x)
    d = x - np.maximum.reduce(x, axis, keepdims=True) if x.size else x
    return d - functions.log(np.add.reduce(functions.exp_of_distance(d), axis, keepdims=True))


def _softmax_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    y, axis = ctx.outputs[0], ctx.attrs["axis"]
    return (y * (ct - apply("sum", ct * y, axis=(axis,), keepdims=True)),)


def _log_softmax_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    y, axis = ctx.outputs[0], ctx.attrs["axis"]
    return (ct - apply("exp", y) * apply("sum", ct, axis=(axis,), keepdims=True),)


def _samples():
    yield Sample((noise(3, 5),), {"axis": -1})
    yield Sample((noise(2, 3, 4),), {"axis": 1})
    yield Sample((noise(5, 48),), {"axis": -1})  # long enough that the order of summation matters
    yield Sample((noise(0, 4),), {"axis": 1})


_QSOFTMAX = QuantRule(
    "softmax",
    "qsoftmax",
    lambda x, y: {"table": integer.softmax_table(x.only_scale, x.codes)},
    fixed=quint8(1 / 256),
    non_negative="always",
)

for _name, _reference, _vjp, _onnx, _quant, _logarithm in (
    ("softmax", _softmax, _softmax_vjp, "Softmax", _QSOFTMAX, False),
    ("log_softmax", _log_softmax, _log_softmax_vjp, "LogSoftmax", FLOAT_ONLY, True),
):
    define(
        _name,
        _infer(_name),
        _reference,
        _vjp,
        OnnxRule(_onnx, {"axis": "axis"}, read=False),
        _samples,
        lambda _name=_name: [
            ErrorSample((np.zeros((2, 3), np.float32),), {"axis": 2}, IndexError, f"{_name}: axis 2 is out of range")
        ],
        quant=_quant,
        lift=lift_axes,
        loses_digits=_logarithm,
    )


def _axis(op: str, x: Tensor, axis: Any) -> int:
    if axis is None:
        axis = 0 if x.ndim in (1, 3) else 1
    return normalize_axis(op, axis, x.ndim)


def _normalised(op: str, name: str, inp: TensorLike, axis: Any) -> Tensor:
    x = floating(inp)
    if isinstance(axis, (list, tuple)) and axis:
        return _over_axes(op, x, [normalize_axis(name, a, x.ndim) for a in axis])
    if x.ndim == 0 and (axis is None or names_only_axis(axis, 0)):  # one element has one axis
        return apply("reshape", apply(op, apply("reshape", x, shape=(1,)), axis=0), shape=())
    return apply(op, x, axis=_axis(name, x, axis))


def _over_axes(op: str, x: Tensor, axes: list[int]) -> Tensor:
    """The op over several axes as if they were one."""
    if len(set(axes)) == 1:
        return apply(op, x, axis=axes[0])
    rest = [a for a in range(x.ndim) if a not in axes]
    perm = (*rest, *sorted(set(axes)))
    moved = apply("transpose", x, perm=perm)
    flat = apply("reshape", moved, shape=(*moved.shape[: len(rest)], -1))
    y = apply("reshape", apply(op, flat, axis=len(rest)), shape=moved.shape)
    return apply("transpose", y, perm=tuple(perm.index(a) for a in range(x.ndim)))


@public(home=_HOME, by_spec=True)
def softmax(inp: TensorLike, axis: Axes = None) -> Tensor:
    """exp(x) normalised to sum 1 along `axis`, or over several (default: 0 of 1 or 3 axes, else 1, as in MegEngine)."""
    return _normalised("softmax", "softmax", inp, axis)


@public(home=_HOME, by_spec=True)
def logsoftmax(inp: TensorLike, axis: Axes) -> Tensor:
    """Logarithm of softmax along `axis`, or over several, without overflow."""
    return _normalised("log_softmax", "logsoftmax", inp, axis)


@public(home=_HOME)
def logsumexp(inp: TensorLike, axis: Axes, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) along `axis`, without overflow: infinity if one element is, -infinity if all are."""
    x = floating(inp)
    top = finite(reduce("max", x, axis, True).detach())
    total = apply("log", reduce("sum", apply("exp", x - top), axis, True)) + top
    if keepdims or not x.ndim:
        return total
    axes = normalize_axes("logsumexp", axis, x.ndim)
    return apply("reshape", total, shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


def check_channels(op: str, x: TensorSpec, **vectors: TensorSpec) -> None:
    """Check that x is [N,C,...], that every vector has C elements, and that none of them is quantized."""
    refuse_quantized(op, x, *vectors.values())
    if x.ndim < 2:
        raise ShapeError(f"{op}: input has shape {x.shape}; expected [N,C,...]")
    for name, p in vectors.items():
        if p.shape != (x.shape[1],):
            raise ShapeError(f"{op}: {name} has shape {p.shape}; expected ({x.shape[1]},)")


def along_channels(channels: int, ndim: int) -> tuple[int, ...]:
    """The shape in which a vector of channels broadcasts against [N,C,...] of `ndim` axes."""
    return (1, channels, *([1] * (ndim - 2)))


def _bn_infer(
    x: TensorSpec, scale: TensorSpec, bias: TensorSpec, mean: TensorSpec, var: TensorSpec, *, eps: float
) -> TensorSpec:
    check_channels("batch_norm", x, scale=scale, bias=bias, mean=mean, var=var)
    return x


def norm_factor(scale: np.ndarray, var: np.ndarray, eps: float) -> np.ndarray:
    """The factor of each channel in a batch norm, in the dtype of the variances."""
    return scale / np.sqrt(var + var.dtype.type(eps))


def _bn(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray, eps: float
) -> np.ndarray:
    factor = norm_factor(scale, var, eps)
    shape = along_channels(scale.shape[0], x.ndim)
    return (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)


def _bn_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, scale, _, mean, var = ctx.inputs
    shape, axes = along_channels(scale.shape[0], x.ndim), _axes(x.ndim)
    r = apply("rsqrt", var + ctx.attrs["eps"])
    centred = x - apply("reshape", mean, shape=shape)
    total = apply("sum", ct, axis=axes, keepdims=False)
    moment = apply("sum", ct * centred, axis=axes, keepdims=False)
    dx = ct * apply("reshape", scale * r, shape=shape)
    return dx, moment * r, total, -total * scale * r, moment * scale * -0.5 * r * r * r


define(
    "batch_norm",
    _bn_infer,
    _bn,
    _bn_vjp,
    ONNX_WRITER,
    lambda: [
        Sample((noise(2, 3, 4, 4), noise(3), noise(3) * 2, noise(3) + 1, np.abs(noise(3)) + 0.5), {"eps": 1e-5}),
        Sample((noise(0, 3), noise(3), noise(3), noise(3), np.abs(noise(3)) + 1), {"eps": 1e-3}),
    ],
    lambda: [ErrorSample((np.zeros((1, 3, 2, 2)), *[np.zeros(2)] * 4), {"eps": 1e-5}, ShapeError, "batch_norm: scale")],
    normalizes=True,
)


def _axes(ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim))


def _training_infer(x: TensorSpec, scale: TensorSpec, bias: TensorSpec, *, eps: float) -> tuple[TensorSpec, ...]:
    op = "batch_norm_training"
    check_channels(op, x, scale=scale, bias=bias)
    if x.size == 0:
        raise ShapeError(f"{op}: input has shape {x.shape}; a batch without elements has no statistics")
    vector = TensorSpec((x.shape[1],), scale.dtype, x.device)
    return x, vector, vector


def _training(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, eps: float) -> tuple[np.ndarray, ...]:
    axes, shape = _axes(x.ndim), along_channels(scale.shape[0], x.ndim)
    x = in_order(x)
    mean = x.mean(axes)
    centred = x - mean.reshape(shape)
    var = np.square(centred).mean(axes)
    factor = norm_factor(scale, var, eps)
    return centred * factor.reshape(shape) + bias.reshape(shape), mean, var


def _training_vjp(ctx: Any, ct: Tensor | None, ct_mean: Tensor | None, ct_var: Tensor | None) -> tuple:
    (x, scale, _), (_, mean, var) = ctx.inputs, ctx.outputs
    shape, count = along_channels(scale.shape[0], x.ndim), x.size // scale.size
    dx = dscale = dbias = None
    if ct is not None:
        dx, dscale, dbias = apply("batch_norm_training_backward", x, ct, scale, mean, var, **ctx.attrs)
    if ct_mean is not None:
        more = apply("broadcast_to", apply("reshape", ct_mean * (1 / count), shape=shape), shape=x.shape)
        dx = more if dx is None else dx + more
    if ct_var is not None:
        centred = x - apply("reshape", mean, shape=shape)
        more = centred * apply("reshape", ct_var * (2 / count), shape=shape)
        dx = more if dx is None else dx + more
    return dx, dscale, dbias


define(
    "batch_norm_training",
    _training_infer,
    _training,
    _training_vjp,
    no_onnx("statistics of the batch; export the network in evaluation mode"),
    lambda: [
        Sample((noise(2, 3, 4, 5), noise(3), noise(3) * 2), {"eps": 1e-5}),
        Sample((noise(7, 4), noise(4), noise(4)), {"eps": 1e-3}),
        Sample((noise(2, 3, 5), noise(3), noise(3)), {"eps": 1e-3}),
        Sample((noise(3, 17, 11, 9) * 3 + 50, noise(17), noise(17)), {"eps": 1e-5}),
    ],
    lambda: [
        ErrorSample((np.zeros((1, 3, 2, 2)), np.zeros(2), np.zeros(3)), {"eps": 1e-5}, ShapeError, "scale has"),
        ErrorSample((np.zeros((0, 3)), np.zeros(3), np.zeros(3)), {"eps": 1e-5}, ShapeError, "no statistics"),
    ],
    normalizes=True,
)


def _infer_backward(
    x: TensorSpec, ct: TensorSpec, scale: TensorSpec, mean: TensorSpec, var: TensorSpec, *, eps: float
) -> tuple[TensorSpec, ...]:
    op = "batch_norm_training_backward"
    check_channels(op, x, scale=scale, mean=mean, var=var)
    refuse_quantized(op, ct)
    if ct.shape != x.shape:
        raise ShapeError(f"{op}: the cotangent has shape {ct.shape}; expected {x.shape}")
    return x, scale, scale


def _reference_backward(
    x: np.ndarray, ct: np.ndarray, scale: np.ndarray, mean: np.ndarray, var: np.ndarray, eps: float
) -> tuple[np.ndarray, ...]:
    x, ct = in_order(x), in_order(ct)
    axes, shape = _axes(x.ndim), along_channels(scale.shape[0], x.ndim)
    r = 1 / np.sqrt(var + var.dtype.type(eps))
    h = (x - mean.reshape(shape)) * r.reshape(shape)
    total, moment = ct.sum(axes), (ct * h).sum(axes)
    count = max(1, x.size // max(1, scale.size))
    inner = ct - (total / count).reshape(shape) - h * (moment / count).reshape(shape)
    return inner * (scale * r).reshape(shape), moment, total


def _vjp_backward(ctx: Any, *cotangents: Tensor | None) -> tuple:
    """Gradients of L = sum(gx dx) + sum(gs dscale) + sum(gb dbias), with the sums S, T of ct and P, Q, R of gx.

    sum(gx dx) = scale r (R - S P / n - Q T / n), where h and r are functions of x, mean and var.
    """
    x, ct, scale, mean, var = ctx.inputs
    shape, axes, n = along_channels(scale.shape[0], x.ndim), _axes(x.ndim), x.size // scale.size
    gx, gs, gb = (zeros_like(o) if g is None else g for g, o in zip(cotangents, ctx.outputs, strict=True))

    def wide(value: Tensor) -> Tensor:
        return apply("reshape", value, shape=shape)

    def total(value: Tensor) -> Tensor:
        return apply("sum", value, axis=axes, keepdims=False)

    r = apply("rsqrt", var + ctx.attrs["eps"])
    centred = x - wide(mean)
    h = centred * wide(r)
    s, t, p, q = total(ct), total(ct * h), total(gx), total(gx * h)
    whole = total(gx * ct) - (s * p + q * t) * (1 / n)
    a = scale * r
    dct = wide(a) * (gx - wide(p * (1 / n)) - h * wide(q * (1 / n))) + wide(gs) * h + wide(gb)
    dh = wide(gs) * ct - wide(a * t * (1 / n)) * gx - wide(a * q * (1 / n)) * ct
    dr = total(dh * centred) + scale * whole
    return dh * wide(r), dct, r * whole, -r * total(dh), dr * -0.5 * r * r * r


define(
    "batch_norm_training_backward",
    _infer_backward,
    _reference_backward,
    _vjp_backward,
    no_onnx("gradient of batch_norm_training"),
    lambda: [
        Sample((noise(2, 3, 4, 5), noise(2, 3, 4, 5) + 1, noise(3), noise(3), np.abs(noise(3)) + 0.5), {"eps": 1e-5}),
        Sample((noise(7, 4), noise(7, 4) * 2, noise(4), noise(4), np.abs(noise(4)) + 0.5), {"eps": 1e-3}),
        Sample(
            (noise(3, 17, 9, 8), noise(3, 17, 9, 8) - 1, noise(17), noise(17), np.abs(noise(17)) + 0.5), {"eps": 1e-3}
        ),
    ],
    lambda: [
        ErrorSample((np.zeros((1, 3)), np.zeros((2, 3)), *[np.zeros(3)] * 3), {"eps": 1e-5}, ShapeError, "cotangent")
    ],
)


def _running_infer(
    mean: TensorSpec, var: TensorSpec, new: TensorSpec, spread: TensorSpec, *, momentum: float, correction: float
) -> tuple[TensorSpec, ...]:
    op, all_of_them = "running_statistics", (mean, var, new, spread)
    refuse_quantized(op, *all_of_them)
    if len({s.size for s in all_of_them}) > 1:
        raise ShapeError(f"{op}: statistics have shapes {[s.shape for s in all_of_them]}; expected as many elements")
    return mean, var


def _running(
    mean: np.ndarray, var: np.ndarray, new: np.ndarray, spread: np.ndarray, momentum: float, correction: float
) -> tuple[np.ndarray, ...]:
    kept, taken, by = (mean.dtype.type(v) for v in (momentum, 1 - momentum, correction))
    return mean * kept + new.reshape(mean.shape) * taken, var * kept + (spread * by).reshape(var.shape) * taken


define(
    "running_statistics",
    _running_infer,
    _running,
    zero_gradient("running statistics are not differentiated"),
    no_onnx("statistics of the batch; export the network in evaluation mode"),
    lambda: [
        Sample((noise(5), noise(5) + 1, noise(5) * 2, noise(5) - 1), {"momentum": 0.9, "correction": 1.25}, False),
        Sample((noise(1, 3, 1), noise(3), noise(3), noise(3)), {"momentum": 0.5, "correction": 1.0}, False),
    ],
    lambda: [
        ErrorSample(
            (np.zeros(3), np.zeros(3), np.zeros(2), np.zeros(3)),
            {"momentum": 0.9, "correction": 1.0},
            ShapeError,
            "running_statistics: statistics have shapes .* expected as many elements",
        )
    ],
)


def _vector(p: Any, x: Tensor, fill: float) -> Tensor:
    channels = x.shape[1]
    if p is None:
        return Tensor(np.full(channels, fill, np.float32), device=x.device)
    p = as_tensor(p)
    return p if p.shape == (channels,) else apply("reshape", p, shape=(p.size,))


def running_average(running: Tensor, value: Tensor, momentum: Any) -> Tensor:
    """The next value of running statistics: momentum * running + (1 - momentum) * value, without a gradient."""
    return running.detach() * momentum + apply("reshape", value.detach(), shape=running.shape) * (1 - momentum)


def _next_statistics(
    running_mean: Tensor, running_var: Tensor, mean: Tensor, var: Tensor, momentum: Any, count: int
) -> tuple[Tensor, Tensor]:
    """The next running statistics, from those of a batch; `count` numbers of each channel had the variance `var`."""
    correction = count / max(1, count - 1)
    plain = type(correction) is float and isinstance(momentum, (int, float))  # no ratio of open sizes
    if plain and len({t.dtype for t in (running_mean, running_var, mean, var)}) == 1:
        attrs = {"momentum": float(momentum), "correction": correction}
        return apply("running_statistics", running_mean, running_var, mean, var, **attrs)
    return running_average(running_mean, mean, momentum), running_average(running_var, var * correction, momentum)


@public(home=_HOME)
def batch_norm(
    inp: TensorLike,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    *,
    training: bool = False,
    momentum: float = 0.9,
    eps: float = 1e-5,
    inplace: bool = True,
) -> Any:
    """Normalise inp [N,C,...] per channel; in training by the batch's statistics, updating the running ones in place.

    The running variance is the unbiased one. weight, bias and statistics hold C elements in any shape. In training
    without `inplace` the running ones are kept, and the result is (y, new running mean, new running variance).
    """
    x = floating(inp)
    c = x.shape[1]
    scale, shift = _vector(weight, x, 1.0), _vector(bias, x, 0.0)
    if not fits(momentum, float):
        raise ArgumentError(f"batch_norm: momentum is {shown(momentum)}; expected a number")
    if not training:
        if running_mean is None or running_var is None:
            raise ShapeError("batch_norm: evaluation needs running_mean and running_var; pass them or training=True")
        return apply(
            "batch_norm", x, scale, shift, _vector(running_mean, x, 0), _vector(running_var, x, 1), eps=float(eps)
        )
    if not x.size:  # no statistics: the running ones are kept, and parameters get zero gradients
        y = apply("batch_norm", x, scale, shift, _vector(None, x, 0), _vector(None, x, 1), eps=float(eps))
        return y if inplace or running_mean is None or running_var is None else (y, running_mean, running_var)
    y, mean, var = apply("batch_norm_training", x, scale, shift, eps=float(eps))
    if running_mean is None or running_var is None:
        return y
    new_mean, new_var = _next_statistics(running_mean, running_var, mean, var, momentum, x.size // c)
    if not inplace:
        return y, new_mean, new_var
    running_mean._reset(new_mean)
    running_var._reset(new_var)
    return y


@public(home=_HOME)
def sync_batch_norm(
    inp: TensorLike,
    running_mean: Tensor,
    running_var: Tensor,
    weight: TensorLike | None = None,
    bias: TensorLike | None = None,
    training: bool = False,
    momentum: Any = 0.9,
    eps: float = 1e-5,
    eps_mode: str = "additive",
    group: Any = None,
) -> Tensor:
    """Batch normalisation whose statistics are those of all processes of `group`; with one process, batch_norm.

    eps_mode: "additive" adds eps to the variance, "max" takes at least eps. Raises OptionError for another mode.
    """
    choice("sync_batch_norm", "eps_mode", eps_mode.lower(), ("additive", "max"))
    if getattr(group, "size", 1) > 1:
        raise OptionError("sync_batch_norm: group has several processes; expected one; reduce the statistics yourself")
    options = {"training": training, "momentum": momentum}
    if eps_mode.lower() == "additive":
        return batch_norm(inp, running_mean, running_var, weight, bias, eps=eps, **options)
    mean, var = running_mean, as_tensor(running_var)
    if training:
        x = floating(inp)
        batch_norm(x, running_mean, running_var, **options)  # moves the running statistics
        axes = _axes(x.ndim)
        mean = apply("mean", x, axis=axes, keepdims=True)
        var = apply("mean", (x - mean) * (x - mean), axis=axes, keepdims=True)
    return batch_norm(inp, mean, apply("clip", var, lo=float(eps), hi=float("inf")), weight, bias, eps=0.0)
