"""Convolution, transposed convolution and their gradients as ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import ErrorSample, OnnxRule, QuantRule, Sample, apply, define, no_onnx, public
from megengine.kernels.reference import conv as reference
from megengine.ops.common import Integers, as_tensor, check_modes, noise, pad_pairs, pair, promote, refuse_quantized
from megengine.tensor import Tensor

_HOME = "megengine.functional.nn"
GEOMETRY = ("stride", "padding", "dilation", "groups")


def check_window(
    op: str, size: tuple[int, ...], kernel: tuple[int, ...], stride: Any, padding: Any, dilation: Any
) -> tuple:
    """Height and width of the result of moving a window over (H, W) = size, checked."""
    numbers = (*kernel, *stride, *dilation, *(n for pair in padding for n in pair))
    if (
        len(numbers) != 10
        or {len(padding), *map(len, padding)} != {2}
        or not all(isinstance(n, (int, np.integer)) for n in numbers)
    ):
        raise OptionError(
            f"{op}: kernel {kernel}, stride {stride}, dilation {dilation}, padding {padding}; expected two integers "
            "each, two pairs of them for padding"
        )
    if min(stride) < 1 or min(dilation) < 1:
        raise OptionError(f"{op}: stride {stride} and dilation {dilation} must be at least 1")
    if min(min(p) for p in padding) < 0:
        raise OptionError(f"{op}: padding {padding} is negative; expected numbers >= 0; cut with slicing")
    out = tuple(
        reference.out_length(n, k, s, p, d)
        for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    if min(out) < 1:
        raise ShapeError(f"{op}: window of {kernel}, dilation {dilation}, does not fit input {size}, padding {padding}")
    return out


def check_conv(op: str, x: TensorSpec, w: TensorSpec, groups: int) -> None:
    """Axes, channels and groups of a convolution, checked."""
    if x.ndim != 4 or w.ndim != 4:
        raise ShapeError(f"{op}: x has shape {x.shape}, w {w.shape}; expected x [N,C,H,W] and w [O,C/groups,kh,kw]")
    if groups < 1 or w.shape[0] % groups:
        outputs = counted(w.shape[0], "output channel")
        raise OptionError(f"{op}: {outputs} cannot be divided into {counted(groups, 'group')}")
    if x.shape[1] != w.shape[1] * groups:
        have, takes = counted(x.shape[1], "channel"), w.shape[1] * groups
        raise ShapeError(f"{op}: x has {have}, w {w.shape} with groups={groups} takes {takes}")


def _same_float(op: str, *specs: TensorSpec) -> None:
    refuse_quantized(op, *specs)
    if len({s.dtype for s in specs}) > 1:
        raise DTypeError(f"{op}: inputs are {', '.join(str(s.dtype) for s in specs)}; expected one dtype")


def infer_conv2d(
    x: TensorSpec, w: TensorSpec, *b: TensorSpec, stride: Any, padding: Any, dilation: Any, groups: int
) -> TensorSpec:
    """Spec of conv2d's result."""
    _same_float("conv2d", x, w, *b)
    check_conv("conv2d", x, w, groups)
    if b and b[0].shape != (w.shape[0],):
        raise ShapeError(f"conv2d: bias has shape {b[0].shape}; expected ({w.shape[0]},)")
    out = check_window("conv2d", x.shape[2:], w.shape[2:], stride, padding, dilation)
    return TensorSpec((x.shape[0], w.shape[0], *out), x.dtype, x.device)


def _conv_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, w = ctx.inputs[:2]
    dx = apply("conv2d_backward_data", ct, w, size=x.shape[2:], **ctx.attrs) if ctx.needs[0] else None
    dw = apply("conv2d_backward_weight", x, ct, kernel=w.shape[2:], **ctx.attrs) if ctx.needs[1] else None
    return dx, dw, *_bias_gradient(ctx, ct)


def _bias_gradient(ctx: Any, ct: Tensor) -> list[Tensor | None]:
    """The gradient of the bias, if there is one, in a list."""
    return [apply("sum", ct, axis=(0, 2, 3), keepdims=False) if need else None for need in ctx.needs[2:]]


def _attrs(
    stride: Any = (1, 1), padding: Any = ((0, 0), (0, 0)), dilation: Any = (1, 1), groups: int = 1
) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


_CASES: list[tuple[tuple, tuple, dict[str, Any]]] = [
    ((2, 3, 7, 6), (4, 3, 3, 3), _attrs(padding=((1, 1), (1, 1)))),
    ((1, 4, 9, 9), (6, 2, 3, 2), _attrs((2, 1), ((0, 1), (1, 0)), (1, 2), 2)),
    ((2, 6, 5, 5), (6, 1, 3, 3), _attrs((2, 2), ((1, 1), (1, 1)), groups=6)),
    ((1, 5, 4, 4), (3, 5, 1, 1), _attrs()),
    ((1, 2, 1, 8), (3, 2, 1, 3), _attrs((1, 3))),
    ((0, 3, 5, 5), (2, 3, 3, 3), _attrs()),
]


def _conv_samples() -> Iterator[Sample]:
    for x, w, attrs in _CASES:
        yield Sample((noise(*x), noise(*w)), attrs)
    x, w, attrs = _CASES[0]
    yield Sample((noise(*x), noise(*w), noise(w[0])), attrs)


def _conv_errors() -> Iterator[ErrorSample]:
    x, w = np.zeros((1, 3, 5, 5), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    yield ErrorSample((x[0], w), _attrs(), ShapeError, "conv2d: x has shape")
    yield ErrorSample((x[:, :2], w), _attrs(), ShapeError, "conv2d: x has 2 channels")
    yield ErrorSample((x[..., :1], w), _attrs(), ShapeError, "does not fit input")
    yield ErrorSample((x, w), _attrs((0, 1)), OptionError, "stride .* at least 1")
    yield ErrorSample((x, w), _attrs(groups=3), OptionError, "divided into 3 groups")


def window_macs(inputs: Sequence[TensorSpec], result: TensorSpec, attrs: Mapping[str, Any]) -> int:
    """Multiply-accumulates of a convolution: places of the result x elements of the weight, with groups or without."""
    return result.shape[0] * math.prod(result.shape[2:]) * math.prod(inputs[1].shape)


def _onnx(op_type: str, **attributes: str) -> OnnxRule:
    names = {"stride": "strides", "padding": "pads", "dilation": "dilations", "groups": "group", **attributes}
    return OnnxRule(op_type, names, lambda specs: {"kernel_shape": specs[1].shape[2:]}, read=False)


define(
    "conv2d",
    infer_conv2d,
    reference.conv2d,
    _conv_vjp,
    _onnx("Conv"),
    _conv_samples,
    _conv_errors,
    quant=QuantRule("weighted", "qconv2d", weight_axis=lambda attrs: 0),
    macs=window_macs,
)


def _infer_data(
    ct: TensorSpec, w: TensorSpec, *, size: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> TensorSpec:
    name = "conv2d_backward_data"
    _same_float(name, ct, w)
    channels = w.shape[1] * groups
    out = check_window(name, size, w.shape[2:], stride, padding, dilation)
    if ct.ndim != 4 or ct.shape[1:] != (w.shape[0], *out):
        raise ShapeError(f"{name}: the cotangent has shape {ct.shape}; expected (N, {w.shape[0]}, {out[0]}, {out[1]})")
    return TensorSpec((ct.shape[0], channels, *size), ct.dtype, ct.device)


def _geometry(attrs: Any) -> dict[str, Any]:
    return {k: attrs[k] for k in GEOMETRY}


def _data_vjp(ctx: Any, g: Tensor) -> tuple:
    ct, w = ctx.inputs
    geometry = _geometry(ctx.attrs)
    dct = apply("conv2d", g, w, **geometry) if ctx.needs[0] else None
    dw = apply("conv2d_backward_weight", g, ct, kernel=w.shape[2:], **geometry) if ctx.needs[1] else None
    return dct, dw


def _gradient_samples(weight: bool) -> Callable[[], Iterator[Sample]]:
    def samples() -> Iterator[Sample]:
        for x, w, attrs in _CASES:
            spec = infer_conv2d(TensorSpec(x, np.dtype(float)), TensorSpec(w, np.dtype(float)), **attrs)
            if weight:
                yield Sample((noise(*x), noise(*spec.shape)), {"kernel": w[2:], **attrs})
            else:
                yield Sample((noise(*spec.shape), noise(*w)), {"size": x[2:], **attrs})

    return samples


define(
    "conv2d_backward_data",
    _infer_data,
    reference.conv2d_backward_data,
    _data_vjp,
    no_onnx("gradient of conv2d"),
    _gradient_samples(False),
)


def _infer_weight(
    x: TensorSpec, ct: TensorSpec, *, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> TensorSpec:
    name = "conv2d_backward_weight"
    _same_float(name, x, ct)
    out = check_window(name, x.shape[2:], kernel, stride, padding, dilation)
    if ct.ndim != 4 or ct.shape[2:] != out or ct.shape[0] != x.shape[0]:
        raise ShapeError(f"{name}: the cotangent has shape {ct.shape}; expected ({x.shape[0]}, O, {out[0]}, {out[1]})")
    return TensorSpec((ct.shape[1], x.shape[1] // groups, *kernel), x.dtype, x.device)


def _weight_vjp(ctx: Any, g: Tensor) -> tuple:
    x, ct = ctx.inputs
    geometry = _geometry(ctx.attrs)
    dx = apply("conv2d_backward_data", ct, g, size=x.shape[2:], **geometry) if ctx.needs[0] else None
    dct = apply("conv2d", x, g, **geometry) if ctx.needs[1] else None
    return dx, dct


define(
    "conv2d_backward_weight",
    _infer_weight,
    reference.conv2d_backward_weight,
    _weight_vjp,
    no_onnx("gradient of conv2d"),
    _gradient_samples(True),
)

# ---------------------------------------------------------------- transposed convolution


def _transposed_size(x: Any, w: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any) -> tuple[int, int]:
    sizes = [
        (n - 1) * s - p[0] - p[1] + d * (k - 1) + 1 + extra
        for n, k, s, p, d, extra in zip(
            x.shape[2:], w.shape[2:], stride, padding, dilation, output_padding, strict=True
        )
    ]
    return sizes[0], sizes[1]


def _check_geometry(op: str, stride: Any, padding: Any, dilation: Any, groups: int) -> None:
    pads = [p for pair in padding for p in pair]
    if min(*stride, *dilation, groups) < 1 or min(pads) < 0:
        raise OptionError(
            f"{op}: stride {stride}, padding {padding}, dilation {dilation}, groups={groups}; expected >= 1"
        )


def _infer_transpose(
    x: TensorSpec,
    w: TensorSpec,
    *b: TensorSpec,
    stride: Any,
    padding: Any,
    output_padding: Any,
    dilation: Any,
    groups: int,
) -> TensorSpec:
    name = "conv_transpose2d"
    _same_float(name, x, w, *b)
    _check_geometry(name, stride, padding, dilation, groups)
    if x.ndim != 4 or w.ndim != 4 or x.shape[1] != w.shape[0] or w.shape[0] % groups:
        raise ShapeError(
            f"{name}: x has shape {x.shape}, w {w.shape}, groups={groups}; "
            "expected x [N,I,H,W] and w [I,O/groups,kh,kw]"
        )
    if any(not 0 <= e < max(s, d) for e, s, d in zip(output_padding, stride, dilation, strict=True)):
        raise OptionError(f"{name}: output_padding {output_padding} must be smaller than stride {stride} or dilation")
    channels = w.shape[1] * groups
    if b and b[0].shape != (channels,):
        raise ShapeError(f"{name}: bias has shape {b[0].shape}; expected ({channels},)")
    size = _transposed_size(x, w, stride, padding, output_padding, dilation)
    if min(size) < 1:
        raise ShapeError(f"{name}: the result would have size {size}; padding {padding} is too large")
    return TensorSpec((x.shape[0], channels, *size), x.dtype, x.device)


def _transpose_reference(
    x: np.ndarray, w: np.ndarray, b: Any = None, *, output_padding: Any, **attrs: Any
) -> np.ndarray:
    size = _transposed_size(x, w, attrs["stride"], attrs["padding"], output_padding, attrs["dilation"])
    out = reference.conv2d_backward_data(x, w, size=size, **attrs)
    return out if b is None else out + b.reshape(1, -1, 1, 1)


def _transpose_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, w = ctx.inputs[:2]
    geometry = _geometry(ctx.attrs)
    dx = apply("conv2d", ct, w, **geometry) if ctx.needs[0] else None
    dw = apply("conv2d_backward_weight", ct, x, kernel=w.shape[2:], **geometry) if ctx.needs[1] else None
    return dx, dw, *_bias_gradient(ctx, ct)


def _transpose_samples() -> Iterator[Sample]:
    for x, w, attrs, extra in (
        ((2, 3, 4, 5), (3, 2, 3, 3), _attrs((2, 2), ((1, 1), (1, 1))), (1, 0)),
        ((1, 4, 3, 3), (4, 3, 2, 3), _attrs((1, 3), dilation=(2, 1), groups=2), (0, 0)),
    ):
        yield Sample((noise(*x), noise(*w)), {"output_padding": extra, **attrs})
    yield Sample((noise(*x), noise(*w), noise(6)), {"output_padding": extra, **attrs})


def _transposed_axis(attrs: Mapping[str, Any]) -> int | None:
    return 1 if attrs.get("groups", 1) == 1 else None  # [I, O/groups, kh, kw]: groups share the axis


define(
    "conv_transpose2d",
    _infer_transpose,
    _transpose_reference,
    _transpose_vjp,
    _onnx("ConvTranspose", output_padding="output_padding"),
    _transpose_samples,
    quant=QuantRule("weighted", weight_axis=_transposed_axis, transposed=True),
    macs=lambda inputs, result, attrs: window_macs(inputs, inputs[0], attrs),
)


def _one_dtype(op: str, *tensors: Any) -> list[Tensor]:
    present = [as_tensor(t) for t in tensors if t is not None]
    dtype = present[0].dtype
    for t in present[1:]:
        dtype = promote(op, dtype, t.dtype)
    return [t if t.dtype == dtype else apply("cast", t, dtype=dtype) for t in present]


def plain_weight(op: str, w: Tensor, groups: int, axes: int) -> Tensor:
    """MegEngine's grouped weight (groups, O/groups, ...) as [O, ...] of `axes` axes; another weight as it is."""
    if w.ndim != axes + 1:
        return w
    if w.shape[0] != groups:
        raise ShapeError(f"{op}: weight {w.shape} has {counted(w.shape[0], 'group')}, got groups={groups}")
    return apply("reshape", w, shape=(w.shape[0] * w.shape[1], *w.shape[2:]))


def _convolved(
    op: str, tensors: list[Tensor], stride: Any, padding: Any, dilation: Any, groups: int, **more: Any
) -> Tensor:
    """The op on x, the weight (grouped or not) and the bias (of any shape), if there is one."""
    tensors[1] = plain_weight(op, tensors[1], groups, 4)
    if len(tensors) == 3 and tensors[2].ndim != 1:
        tensors[2] = apply("reshape", tensors[2], shape=(tensors[2].size,))
    return apply(
        op,
        *tensors,
        stride=pair(op, "stride", stride),
        padding=pad_pairs(op, padding),
        dilation=pair(op, "dilation", dilation),
        groups=int(groups),
        **more,
    )


@public(home=_HOME, by_spec=True)
def conv2d(
    inp: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Integers = 1,
    padding: Integers | Sequence[Sequence[int]] = 0,
    dilation: Integers = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """2-D convolution of inp [N,C,H,W] with weight [O,C/groups,kh,kw] or (groups,O/groups,C/groups,kh,kw).

    bias: [O] or (1,O,1,1). padding: one number, one per axis, or a pair (before, after) per axis. Returns
    [N,O,oh,ow]. Raises ShapeError where shapes do not fit.
    """
    check_modes("conv2d", conv_mode, compute_mode)
    return _convolved("conv2d", _one_dtype("conv2d", inp, weight, bias), stride, padding, dilation, groups)


@public(home=_HOME, by_spec=True)
def conv_transpose2d(
    inp: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Integers = 1,
    padding: Integers = 0,
    output_padding: Integers = 0,
    dilation: Integers = 1,
    groups: int = 1,
    conv_mode: str = "cross_correlation",
    compute_mode: str = "default",
) -> Tensor:
    """Transposed convolution of inp [N,I,H,W] with weight [I,O/groups,kh,kw]: the adjoint of conv2d.

    bias: [O] or (1,O,1,1). A 5-d weight is (groups, I/groups, O/groups, kh, kw).
    """
    name = "conv_transpose2d"
    check_modes(name, conv_mode, compute_mode)
    tensors = _one_dtype(name, inp, weight, bias)
    if tensors[0].dtype == np.int8:  # sums of products do not fit
        tensors = [apply("cast", t, dtype=np.dtype(np.int32)) for t in tensors]
    extra = pair(name, "output_padding", output_padding)
    return _convolved(name, tensors, stride, padding, dilation, groups, output_padding=extra)
