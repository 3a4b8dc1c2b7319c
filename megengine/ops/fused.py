"""Fused ops: what plans make of a layer with bias, residual and activation, and of elementwise ops in a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.autodiff.tape import Tape
from megengine.core.dtype import qint8
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import ONNX_WRITER, ErrorSample, Sample, apply, define, no_onnx, not_differentiable, registry
from megengine.dispatch.apply import interpose
from megengine.kernels.reference import conv as reference
from megengine.kernels.reference.order import in_order, sum_of_windows
from megengine.ops import unary  # noqa: F401  (defines the activations)
from megengine.ops.common import lift_plain, noise, refuse_quantized
from megengine.ops.conv import infer_conv, window_macs
from megengine.ops.matmul import product_macs
from megengine.tensor import Tensor

ACTIVATIONS = ("none", *(op.name for op in registry.values() if op.activation))
_MADE_BY_PASSES = not_differentiable("fused ops are made by passes for inference; differentiate the unfused graph")


def _check_activation(op: str, activation: str) -> None:
    if activation not in ACTIVATIONS:
        raise OptionError(f"{op}: activation is {activation!r}; expected one of {ACTIVATIONS}")


def _activate(y: np.ndarray, activation: str) -> np.ndarray:
    return y if activation == "none" else registry[activation].reference(y)


def _with_residual(op: str, spec: TensorSpec, residual: tuple[TensorSpec, ...]) -> TensorSpec:
    if residual and residual[0] != spec:
        raise ShapeError(f"{op}: the residual is {residual[0]}; expected {spec}")
    return spec


def _conv_infer(x: TensorSpec, w: TensorSpec, b: TensorSpec, *r: Any, activation: str, **geometry: Any) -> TensorSpec:
    _check_activation("fused_conv2d", activation)
    return _with_residual("fused_conv2d", infer_conv(x, w, b, **geometry), r)


def _volume_infer(x: TensorSpec, w: TensorSpec, b: TensorSpec, *, activation: str, **geometry: Any) -> TensorSpec:
    _check_activation("fused_conv3d", activation)
    return infer_conv(x, w, b, axes=3, **geometry)


def _conv(x: Any, w: Any, b: Any, *r: Any, activation: str, **geometry: Any) -> np.ndarray:
    y = reference.convolution(x, w, b, **geometry)
    return _activate(y + r[0] if r else y, activation)


def _linear_infer(x: TensorSpec, w: TensorSpec, b: TensorSpec, *r: TensorSpec, activation: str) -> TensorSpec:
    _check_activation("fused_linear", activation)
    refuse_quantized("fused_linear", x, w, b, *r)
    if x.ndim < 2 or w.ndim != 2 or x.shape[-1] != w.shape[1] or b.shape != (w.shape[0],):
        raise ShapeError(f"fused_linear: x {x.shape}, w {w.shape}, b {b.shape}; expected [...,M,K], [N,K], [N]")
    return _with_residual("fused_linear", TensorSpec((*x.shape[:-1], w.shape[0]), x.dtype, x.device), r)


def _linear(x: Any, w: Any, b: Any, *r: Any, activation: str) -> np.ndarray:
    y = in_order(x) @ in_order(w).swapaxes(-1, -2) + b
    return _activate(y + r[0] if r else y, activation)


def _unknown_activation(op: str, operands: tuple[Any, Any], attrs: dict[str, Any]) -> ErrorSample:
    attrs = {**attrs, "activation": "swirl"}
    inputs = (*operands, noise(operands[1].shape[0]))
    return ErrorSample(inputs, attrs, OptionError, f"{op}: activation is 'swirl'; expected one of")


_GEOMETRY = {"stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1), "groups": 1}


def _volume_geometry() -> dict[str, Any]:
    return {"stride": (1, 2, 1), "padding": ((1, 1), (0, 1), (1, 0)), "dilation": (1, 1, 1), "groups": 1}


def _conv_samples() -> Iterator[Sample]:
    for activation in ACTIVATIONS:
        attrs = {**_GEOMETRY, "activation": activation}
        yield Sample((noise(2, 3, 6, 5), noise(8, 3, 3, 3), noise(8)), attrs, False)
    yield Sample(
        (noise(1, 3, 6, 5), noise(8, 3, 3, 3), noise(8), noise(1, 8, 6, 5)), {**_GEOMETRY, "activation": "relu6"}, False
    )


define(
    "fused_conv2d",
    _conv_infer,
    _conv,
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    _conv_samples,
    lambda: [_unknown_activation("fused_conv2d", (noise(2, 3, 6, 5), noise(8, 3, 3, 3)), _GEOMETRY)],
    macs=window_macs,
)
define(
    "fused_conv3d",
    _volume_infer,
    _conv,
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [
        Sample((noise(2, 3, 4, 6, 5), noise(8, 3, 3, 3, 3), noise(8)), {**_volume_geometry(), "activation": a}, False)
        for a in ("none", "relu", "gelu")
    ],
    lambda: [_unknown_activation("fused_conv3d", (noise(2, 3, 4, 6, 5), noise(8, 3, 3, 3, 3)), _volume_geometry())],
    macs=window_macs,
)
define(
    "fused_linear",
    _linear_infer,
    _linear,
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [
        *(Sample((noise(3, 5), noise(4, 5), noise(4)), {"activation": a}, False) for a in ACTIVATIONS),
        Sample((noise(2, 3, 6, 5), noise(4, 5), noise(4)), {"activation": "relu"}, False),
        Sample((noise(3, 5), noise(4, 5), noise(4), noise(3, 4)), {"activation": "gelu"}, False),
        Sample((noise(2, 3, 6, 5), noise(4, 5), noise(4), noise(2, 3, 6, 4)), {"activation": "none"}, False),
    ],
    lambda: [
        ErrorSample(
            (noise(3, 5), noise(4, 5), noise(4), noise(4)),
            {"activation": "none"},
            ShapeError,
            "fused_linear: the residual",
        ),
        ErrorSample(
            (noise(3, 5), noise(4, 5), noise(4), Tensor._wrap(np.zeros((3, 4), np.int8), qint8(0.5))),
            {"activation": "none"},
            DTypeError,
            "fused_linear: got a tensor of qint8.* expected real numbers",
        ),
        _unknown_activation("fused_linear", (noise(3, 5), noise(4, 5)), {}),
    ],
    macs=product_macs,
    lift=lift_plain,
)


def _values(program: Any, first: tuple[Any, ...], of: Callable[..., Any]) -> Any:
    """The result of a program: `of(op, *operands, **attributes)` gives the value of an instruction."""
    values = list(first)
    for op, attrs, sources in program:
        values.append(of(registry[op], *(values[i] for i in sources), **dict(attrs)))
    return values[-1]


def _elementwise_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor | None, ...]:
    """The program once more, op by op, on a tape of its own."""
    tape = Tape()
    own = [apply("reshape", t, shape=t.shape) for t in ctx.inputs]  # two inputs may be one tensor
    wanted = [t for t, need in zip(own, ctx.needs, strict=True) if need]
    for tensor in wanted:
        tape.watch(tensor)
    with interpose(tape):
        result = _values(ctx.attrs["program"], tuple(own), apply)
    tape.stop()
    grads = iter(tape.gradients([result], [ct], wanted))
    return tuple(next(grads) if need else None for need in ctx.needs)


_CENTRED = (("sub", (), (0, 1)), ("square", (), (2,)), ("floor", (), (0,)), ("maximum", (), (3, 4)))
_CURVED = (("sub", (), (0, 1)), ("tanh", (), (2,)), ("exp", (), (0,)), ("div", (), (3, 4)))
define(
    "elementwise",
    lambda *inputs, program: _values(program, inputs, lambda op, *specs, **attrs: op.infer(*specs, **attrs)),
    lambda *inputs, program: _values(program, inputs, lambda op, *arrays, **attrs: op.reference(*arrays, **attrs)),
    _elementwise_vjp,
    no_onnx("exported before fusion"),
    lambda: [
        Sample((noise(2, 3, 4, 5), noise(3, 1, 1)), {"program": _CENTRED}, False),
        Sample((noise(3, 4), noise(4)), {"program": _CURVED}),
    ],
    by_type=True,
    lift=lift_plain,
)


def _repeat_infer(x: TensorSpec, *, counts: tuple[int, ...]) -> TensorSpec:
    if len(counts) != x.ndim or min(counts, default=1) < 1:
        raise ShapeError(f"fused_repeat: x {x.shape}, counts {counts}; expected one for each axis, at least 1")
    return TensorSpec(tuple(n * k for n, k in zip(x.shape, counts, strict=True)), x.dtype, x.device)


def _repeat(x: np.ndarray, counts: tuple[int, ...]) -> np.ndarray:
    for axis, count in enumerate(counts):
        x = np.repeat(x, count, axis)
    return x


define(
    "fused_repeat",
    _repeat_infer,
    _repeat,
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [Sample((noise(2, 3, 4, 5),), {"counts": (1, 2, 3, 1)}, False)],
    lambda: [ErrorSample((noise(2, 3),), {"counts": (2,)}, ShapeError, "fused_repeat: .* one for each axis")],
    by_type=True,
    lift=lambda attrs: {"counts": (1, *attrs["counts"])},
)


def _rearrange_infer(
    x: TensorSpec, *, parts: tuple[int, ...], perm: tuple[int, ...], shape: tuple[int, ...]
) -> TensorSpec:
    if not x.size == math.prod(parts) == math.prod(shape) or sorted(perm) != list(range(len(parts))):
        raise ShapeError(
            f"fused_rearrange: x {x.shape}, parts {parts}, perm {perm}, shape {shape}; expected as many elements in "
            "each, and every axis of the parts once"
        )
    return TensorSpec(shape, x.dtype, x.device)


_SHUFFLED = {"parts": (2, 3, 2, 4, 5), "perm": (0, 2, 1, 3, 4), "shape": (2, 6, 4, 5)}
define(
    "fused_rearrange",
    _rearrange_infer,
    lambda x, parts, perm, shape: x.reshape(parts).transpose(perm).reshape(shape),
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [Sample((noise(2, 6, 4, 5),), _SHUFFLED, False)],
    lambda: [ErrorSample((noise(2, 6, 4, 4),), _SHUFFLED, ShapeError, "fused_rearrange: .* as many elements in each")],
    by_type=True,
    lift=lambda attrs: {
        "parts": (1, *attrs["parts"]),
        "perm": (0, *(axis + 1 for axis in attrs["perm"])),
        "shape": (1, *attrs["shape"]),
    },
)


View = tuple[tuple[int, ...], tuple[int, ...], int]  # shape, strides and first element, in elements


def _view_infer(
    x: TensorSpec, y: TensorSpec, *, views: tuple[View, View], perm: tuple[int, ...], scale: float
) -> TensorSpec:
    refuse_quantized("fused_matmul", x, y)
    for view, spec in zip(views, (x, y), strict=True):
        shape, strides, first = view
        last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if first < 0 or min(strides) < 0 or last >= spec.size:
            raise ShapeError(f"fused_matmul: the view {view} of {spec} leaves it; expected one inside")
    (*of_x, rows, _), (*of_y, _, columns) = (shape for shape, *_ in views)
    shape = (*np.broadcast_shapes(tuple(of_x), tuple(of_y)), rows, columns)
    return TensorSpec(tuple(shape[p] for p in perm), x.dtype, x.device)


def _viewed(x: np.ndarray, view: View) -> np.ndarray:
    shape, strides, first = view
    flat = in_order(x).reshape(-1)[first:]
    return np.lib.stride_tricks.as_strided(flat, shape, [s * x.itemsize for s in strides], writeable=False)


_APART = {"views": (((3, 2, 4), (4, 12, 1), 0), ((3, 4, 2), (12, 1, 6), 1)), "perm": (1, 0, 2), "scale": 0.5}
define(
    "fused_matmul",
    _view_infer,
    lambda x, y, views, perm, scale: in_order(
        (np.matmul(_viewed(x, views[0]), _viewed(y, views[1])) * x.dtype.type(scale)).transpose(perm)
    ),
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [Sample((noise(2, 3, 4), noise(3, 12)), _APART, False)],
    lambda: [ErrorSample((noise(2, 3, 4), noise(3, 3)), _APART, ShapeError, "fused_matmul: the view .* leaves it")],
    macs=lambda inputs, result, attrs: math.prod(result.shape) * attrs["views"][0][0][-1],
)


def _norm_infer(
    x: TensorSpec, *factors: TensorSpec, axes: int, eps: float, centred: bool, reciprocal: bool
) -> TensorSpec:
    refuse_quantized("fused_norm", x, *factors)
    tail = x.shape[x.ndim - axes :]
    if not 1 <= axes <= x.ndim or any(f.shape != tail for f in factors):
        raise ShapeError(
            f"fused_norm: x {x.shape}, factors {[f.shape for f in factors]}; expected them of the last axes"
        )
    return x


def _norm(x: Any, *factors: Any, axes: int, eps: float, centred: bool, reciprocal: bool) -> np.ndarray:
    def mean(y: np.ndarray) -> np.ndarray:
        total = np.add.reduce(y, axis=tuple(range(x.ndim - axes, x.ndim)), keepdims=True)
        return total / y.dtype.type(math.prod(x.shape[x.ndim - axes :]))

    x = in_order(x)
    y = x - mean(x) if centred else x
    root = np.sqrt(mean(np.square(y)) + x.dtype.type(eps))
    y = y * (1 / root) if reciprocal else y / root
    for op, factor in zip((np.multiply, np.add), factors, strict=False):
        y = op(y, factor)
    return y


_NORM = {"axes": 1, "eps": 1e-5, "centred": True, "reciprocal": False}
define(
    "fused_norm",
    _norm_infer,
    _norm,
    _MADE_BY_PASSES,
    ONNX_WRITER,
    lambda: [
        Sample((noise(3, 50), noise(50), noise(50)), _NORM, False),
        Sample((noise(2, 3, 4, 5), noise(4, 5)), {**_NORM, "axes": 2, "centred": False}, False),
        Sample((noise(2, 7),), {**_NORM, "reciprocal": True}, False),
    ],
    lambda: [ErrorSample((noise(2, 3), noise(2)), _NORM, ShapeError, "fused_norm: x .* factors .* of the last axes")],
    lift=lift_plain,
)


def _channel_norm_infer(x: TensorSpec, factors: TensorSpec, *, groups: int, eps: float) -> TensorSpec:
    refuse_quantized("fused_channel_norm", x, factors)
    whole = x.ndim > 2 and groups > 0 and x.shape[1] % groups == 0
    if not whole or factors.shape not in ((2, x.shape[1]), (4, x.shape[1])):
        raise ShapeError(
            f"fused_channel_norm: x {x.shape}, factors {factors.shape}, {counted(groups, 'group')}; expected [N,C,...] "
            "with whole groups, [2 or 4, C]"
        )
    return x


def _channel_norm(x: Any, factors: Any, groups: int, eps: float) -> np.ndarray:
    """Groups of channels normalised, then weights and biases of the channels, once or twice."""
    grouped = in_order(x).reshape(x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    y = _norm(grouped, axes=1, eps=eps, centred=True, reciprocal=False).reshape(x.shape)
    for weight, bias in factors.reshape(-1, 2, x.shape[1], *(1,) * (x.ndim - 2)):
        y = y * weight + bias
    return y


define(
    "fused_channel_norm",
    _channel_norm_infer,
    _channel_norm,
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [
        Sample((noise(2, 6, 4, 5), noise(2, 6)), {"groups": 3, "eps": 1e-5}, False),
        Sample((noise(2, 4, 7), noise(4, 4)), {"groups": 4, "eps": 1e-5}, False),
    ],
    lambda: [
        ErrorSample(
            (noise(2, 6, 4), noise(2, 6)), {"groups": 4, "eps": 1e-5}, ShapeError, "fused_channel_norm: .* whole groups"
        )
    ],
)


def _channel_mean_infer(x: TensorSpec, *, window: int, before: int) -> TensorSpec:
    refuse_quantized("fused_channel_mean", x)
    if x.ndim != 4 or not 0 <= before < window:
        raise ShapeError(f"fused_channel_mean: x {x.shape}, window {window}, before {before}; expected [N,C,H,W]")
    return x


def _channel_mean(x: np.ndarray, window: int, before: int) -> np.ndarray:
    """Sums in the order of channels, divided by the whole window; there are zeros beyond the channels."""
    flat = in_order(x).reshape(x.shape[0], 1, x.shape[1], math.prod(x.shape[2:]))
    padding = ((before, window - 1 - before), (0, 0))
    total = sum_of_windows(reference.windows(flat, (window, 1), (1, 1), padding))
    return (total / x.dtype.type(window)).reshape(x.shape)


define(
    "fused_channel_mean",
    _channel_mean_infer,
    _channel_mean,
    _MADE_BY_PASSES,
    no_onnx("exported before fusion"),
    lambda: [
        Sample((noise(2, 7, 3, 4),), {"window": 5, "before": 2}, False),
        Sample((noise(2, 3, 4, 1),), {"window": 4, "before": 1}, False),
        Sample((noise(1, 2, 3, 3),), {"window": 9, "before": 4}, False),
    ],
    lambda: [
        ErrorSample((noise(2, 3),), {"window": 2, "before": 2}, ShapeError, "fused_channel_mean: .* window 2, before 2")
    ],
)
