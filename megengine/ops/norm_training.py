"""Batch normalisation by the statistics of the batch, and its gradient, each as one op."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.errors import ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import ErrorSample, Op, Sample, apply, define, no_onnx
from megengine.kernels.reference.order import in_order
from megengine.ops.common import refuse_quantized
from megengine.ops.creation import zeros_like
from megengine.ops.norm import along_channels, check_channels
from megengine.tensor import Tensor


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).standard_normal(shape)


def _axes(ndim: int) -> tuple[int, ...]:
    return (0, *range(2, ndim))


def _infer(x: TensorSpec, scale: TensorSpec, bias: TensorSpec, *, eps: float) -> tuple[TensorSpec, ...]:
    op = "batch_norm_training"
    check_channels(op, x, scale=scale, bias=bias)
    if x.size == 0:
        raise ShapeError(f"{op}: input has shape {x.shape}; a batch without elements has no statistics")
    vector = TensorSpec((x.shape[1],), x.dtype, x.device)
    return x, vector, vector


def _reference(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, eps: float) -> tuple[np.ndarray, ...]:
    axes, shape = _axes(x.ndim), along_channels(scale.shape[0], x.ndim)
    x = in_order(x)
    mean = x.mean(axes)
    centred = x - mean.reshape(shape)
    var = np.square(centred).mean(axes)
    factor = scale / np.sqrt(var + var.dtype.type(eps))
    return centred * factor.reshape(shape) + bias.reshape(shape), mean, var


def _vjp(ctx: Any, ct: Tensor | None, ct_mean: Tensor | None, ct_var: Tensor | None) -> tuple:
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
    Op(
        "batch_norm_training",
        _infer,
        _reference,
        _vjp,
        no_onnx("statistics of the batch; export the network in evaluation mode"),
        lambda: iter(
            [
                Sample((_x(2, 3, 4, 5), _x(3), _x(3) * 2), {"eps": 1e-5}),
                Sample((_x(7, 4), _x(4), _x(4)), {"eps": 1e-3}),
                Sample((_x(2, 3, 5), _x(3), _x(3)), {"eps": 1e-3}),
                Sample((_x(3, 17, 11, 9) * 3 + 50, _x(17), _x(17)), {"eps": 1e-5}),
            ]
        ),
        lambda: iter(
            [
                ErrorSample((np.zeros((1, 3, 2, 2)), np.zeros(2), np.zeros(3)), {"eps": 1e-5}, ShapeError, "scale has"),
                ErrorSample((np.zeros((0, 3)), np.zeros(3), np.zeros(3)), {"eps": 1e-5}, ShapeError, "no statistics"),
            ]
        ),
    )
)


# ---------------------------------------------------------------- gradient


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


def _vjp_backward(ctx: Any, *given: Tensor | None) -> tuple:
    """Gradients of L = sum(gx dx) + sum(gs dscale) + sum(gb dbias), with the sums S, T of ct and P, Q, R of gx.

    sum(gx dx) = scale r (R - S P / n - Q T / n), where h and r are functions of x, mean and var.
    """
    x, ct, scale, mean, var = ctx.inputs
    shape, axes, n = along_channels(scale.shape[0], x.ndim), _axes(x.ndim), x.size // scale.size
    gx, gs, gb = (zeros_like(o) if g is None else g for g, o in zip(given, ctx.outputs, strict=True))

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
    Op(
        "batch_norm_training_backward",
        _infer_backward,
        _reference_backward,
        _vjp_backward,
        no_onnx("gradient of batch_norm_training"),
        lambda: iter(
            [
                Sample((_x(2, 3, 4, 5), _x(2, 3, 4, 5) + 1, _x(3), _x(3), np.abs(_x(3)) + 0.5), {"eps": 1e-5}),
                Sample((_x(7, 4), _x(7, 4) * 2, _x(4), _x(4), np.abs(_x(4)) + 0.5), {"eps": 1e-3}),
                Sample((_x(3, 17, 9, 8), _x(3, 17, 9, 8) - 1, _x(17), _x(17), np.abs(_x(17)) + 0.5), {"eps": 1e-3}),
            ]
        ),
        lambda: iter(
            [
                ErrorSample(
                    (np.zeros((1, 3)), np.zeros((2, 3)), *[np.zeros(3)] * 3), {"eps": 1e-5}, ShapeError, "cotangent"
                )
            ]
        ),
    )
)
