"""Fused float ops: what plans make of convolution or linear with bias, residual and activation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.errors import OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import Sample, define, no_onnx, not_differentiable, registry
from megengine.kernels.reference import conv as reference
from megengine.kernels.reference.order import in_order
from megengine.ops import unary  # noqa: F401  (defines the activations)
from megengine.ops.common import noise, refuse_quantized
from megengine.ops.conv import infer_conv, window_macs
from megengine.ops.matmul import product_macs

ACTIVATIONS = ("none", *(op.name for op in registry.values() if op.activation))
_MADE_BY_PASSES = not_differentiable("fused ops are made by passes for inference; differentiate the unfused graph")


def _check_activation(op: str, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise OptionError(f"{op}: activation is {activation!r}; expected one of {ACTIVATIONS}")


def _activate(y: np.ndarray, activation: str) -> np.ndarray:
    return y if activation == "none" else registry[activation].reference(y)


def _conv_infer(
    x: TensorSpec, w: TensorSpec, b: TensorSpec, *r: TensorSpec, activation: str, **geometry: Any
) -> TensorSpec:
    _check_activation("fused_conv2d", activation)
    spec = infer_conv(x, w, b, **geometry)
    if r and r[0] != spec:
        raise ShapeError(f"fused_conv2d: the residual is {r[0]}; expected {spec}")
    return spec


def _conv(x: Any, w: Any, b: Any, *r: Any, activation: str, **geometry: Any) -> np.ndarray:
    y = reference.convolution(x, w, b, **geometry)
    return _activate(y + r[0] if r else y, activation)


def _linear_infer(x: TensorSpec, w: TensorSpec, b: TensorSpec, *, activation: str) -> TensorSpec:
    _check_activation("fused_linear", activation)
    refuse_quantized("fused_linear", x, w, b)
    if x.ndim != 2 or w.ndim != 2 or x.shape[1] != w.shape[1] or b.shape != (w.shape[0],):
        raise ShapeError(f"fused_linear: x {x.shape}, w {w.shape}, b {b.shape}; expected [M,K], [N,K], [N]")
    return TensorSpec((x.shape[0], w.shape[0]), x.dtype, x.device)


_GEOMETRY = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}


def _conv_samples() -> Iterator[Sample]:
    for activation in ACTIVATIONS:
        attrs = {**_GEOMETRY, "activation": activation}
        yield Sample((noise(2, 3, 6, 5), noise(8, 3, 3, 3), noise(8)), attrs, False)
    yield Sample(
        (noise(1, 3, 6, 5), noise(8, 3, 3, 3), noise(8), noise(1, 8, 6, 5)), {**_GEOMETRY, "activation": "relu"}, False
    )


define(
    "fused_conv2d",
    _conv_infer,
    _conv,
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    _conv_samples,
    macs=window_macs,
)
define(
    "fused_linear",
    _linear_infer,
    lambda x, w, b, activation: _activate(in_order(x) @ in_order(w).T + b, activation),
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [Sample((noise(3, 5), noise(4, 5), noise(4)), {"activation": a}, False) for a in ACTIVATIONS],
    macs=product_macs,
)
