"""Convolution, transposed convolution and their gradients as ops."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.sizes import is_open
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import (
    FLOAT_ONLY,
    ErrorSample,
    OnnxRule,
    QuantRule,
    Sample,
    apply,
    define,
    get_op,
    mixed,
    no_onnx,
    public,
)
from megengine.kernels.reference import conv as reference
from megengine.kernels.reference import ordered
from megengine.ops.common import (
    Integers,
    as_tensor,
    check_modes,
    noise,
    pad_pairs,
    pair,
    promote,
    refuse_quantized,
    tuple_of,
)
from megengine.ops.ordered import define_ordered
from megengine.tensor import Tensor

_HOME = "megengine.functional.nn"
GEOMETRY = ("stride", "padding", "dilation", "groups")


def check_window(op: str, size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> tuple[int, ...]:
    """Check a window that moves over axes of these sizes; returns the lengths of the result."""
    axes, numbers = len(size), (*kernel, *stride, *dilation, *(n for pair in padding for n in pair))
    if (
        {len(kernel), len(stride), len(dilation), len(padding)} != {axes}
        or {len(pair) for pair in padding} != {2}
        or not all(isinstance(n, (int, np.integer)) for n in numbers)
    ):
        raise OptionError(
            f"{op}: kernel {kernel}, stride {stride}, dilation {dilation}, padding {padding}; expected "
            f"{counted(axes, 'integer')} each, {counted(axes, 'pair')} of them for padding"
        )
    check_taps(op, kernel)
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


def check_taps(op: str, kernel: tuple[int, ...]) -> None:
    """Raises ShapeError for a window without elements."""
    if min(kernel, default=0) < 1:
        raise ShapeError(f"{op}: the window {kernel} has no taps; expected at least one along each axis")


SPACE = {2: ("H,W", "kh,kw"), 3: ("D,H,W", "kd,kh,kw")}  # spatial axes -> their letters, those of a kernel


def check_conv(op: str, x: TensorSpec, w: TensorSpec, groups: int, axes: int = 2) -> None:
    """Check the axes, channels and groups of a convolution."""
    if x.ndim != axes + 2 or w.ndim != axes + 2:
        space, kernel = SPACE[axes]
        raise ShapeError(
            f"{op}: x has shape {x.shape}, w {w.shape}; expected x [N,C,{space}] and w [O,C/groups,{kernel}]"
        )
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


def infer_conv(
    x: TensorSpec, w: TensorSpec, *b: TensorSpec, stride: Any, padding: Any, dilation: Any, groups: int, axes: int = 2
) -> TensorSpec:
    """Spec of a convolution's result."""
    op = f"conv{axes}d"
    _same_float(op, x, w, *b)
    check_conv(op, x, w, groups, axes)
    if b and b[0].shape != (w.shape[0],):
        raise ShapeError(f"{op}: bias has shape {b[0].shape}; expected ({w.shape[0]},)")
    out = check_window(op, x.shape[2:], w.shape[2:], stride, padding, dilation)
    return TensorSpec((x.shape[0], w.shape[0], *out), x.dtype, x.device)


def _attrs(
    stride: Any = (1, 1), padding: Any = ((0, 0), (0, 0)), dilation: Any = (1, 1), groups: int = 1
) -> dict[str, Any]:
    return {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}


Case = tuple[tuple, tuple, dict[str, Any]]  # shapes of x and w, attributes
_CASES: dict[int, list[Case]] = {
    2: [
        ((2, 3, 7, 6), (4, 3, 3, 3), _attrs(padding=((1, 1), (1, 1)))),
        ((1, 4, 9, 9), (6, 2, 3, 2), _attrs((2, 1), ((0, 1), (1, 0)), (1, 2), 2)),
        ((2, 6, 5, 5), (6, 1, 3, 3), _attrs((2, 2), ((1, 1), (1, 1)), groups=6)),
        ((1, 5, 4, 4), (3, 5, 1, 1), _attrs()),
        ((1, 2, 1, 8), (3, 2, 1, 3), _attrs((1, 3))),
        ((0, 3, 5, 5), (2, 3, 3, 3), _attrs()),
    ],
    3: [
        ((1, 2, 4, 5, 4), (3, 2, 3, 3, 2), _attrs((1, 2, 1), ((1, 1), (0, 1), (1, 0)), (1, 1, 2))),
        ((2, 4, 3, 3, 3), (6, 2, 2, 1, 3), _attrs((2, 1, 1), ((0, 1), (0, 0), (1, 1)), (1, 1, 1), 2)),
    ],
}
_TRANSPOSED: dict[int, list[tuple[tuple, tuple, dict[str, Any], tuple]]] = {
    2: [
        ((2, 3, 4, 5), (3, 2, 3, 3), _attrs((2, 2), ((1, 1), (1, 1))), (1, 0)),
        ((1, 4, 3, 3), (4, 3, 2, 3), _attrs((1, 3), dilation=(2, 1), groups=2), (0, 0)),
    ],
    3: [((1, 4, 2, 3, 3), (4, 3, 2, 3, 2), _attrs((1, 2, 3), ((0, 0), (1, 0), (1, 1)), (2, 1, 1), 2), (0, 1, 2))],
}


def _conv_errors() -> Iterator[ErrorSample]:
    x, w = np.zeros((1, 3, 5, 5), np.float32), np.zeros((4, 3, 3, 3), np.float32)
    yield ErrorSample((x[0], w), _attrs(), ShapeError, "conv2d: x has shape")
    yield ErrorSample((x[:, :2], w), _attrs(), ShapeError, "conv2d: x has 2 channels")
    yield ErrorSample((x[..., :1], w), _attrs(), ShapeError, "does not fit input")
    yield ErrorSample((x, w), _attrs((0, 1)), OptionError, "stride .* at least 1")
    yield ErrorSample((x, w), _attrs((1, 1, 1)), OptionError, "expected 2 integers each, 2 pairs of them")
    yield ErrorSample((x, w), _attrs(groups=3), OptionError, "divided into 3 groups")


def window_macs(inputs: Sequence[TensorSpec], result: TensorSpec, attrs: Mapping[str, Any]) -> int:
    """Multiply-accumulates of a convolution: positions of the result times elements of the weight."""
    return result.shape[0] * math.prod(result.shape[2:]) * math.prod(inputs[1].shape)


def _onnx(op_type: str, **attributes: str) -> OnnxRule:
    names = {"stride": "strides", "padding": "pads", "dilation": "dilations", "groups": "group", **attributes}
    return OnnxRule(op_type, names, lambda specs: _kernel_shape(specs[1].shape[2:]), read=False)


def _kernel_shape(kernel: tuple[int, ...]) -> dict[str, Any]:
    """The attribute of ONNX; of open lengths, which follow from the weight, it is left out."""
    return {} if is_open(kernel) else {"kernel_shape": kernel}


def _geometry(attrs: Any) -> dict[str, Any]:
    return {k: attrs[k] for k in GEOMETRY}


def _bias_gradient(ctx: Any, ct: Tensor) -> list[Tensor | None]:
    """A list with the gradient of the bias; empty without a bias."""
    axes = (0, *range(2, ct.ndim))
    return [apply("sum", ct, axis=axes, keepdims=False) if need else None for need in ctx.needs[2:]]


def _transposed_size(x: Any, w: Any, stride: Any, padding: Any, output_padding: Any, dilation: Any) -> tuple[int, ...]:
    numbers = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, output_padding, strict=True)
    return tuple((n - 1) * s - p[0] - p[1] + d * (k - 1) + 1 + extra for n, k, s, p, d, extra in numbers)


def _transpose_reference(x: np.ndarray, w: np.ndarray, b: Any = None, *, output_padding: Any, **attrs: Any) -> Any:
    size = _transposed_size(x, w, attrs["stride"], attrs["padding"], output_padding, attrs["dilation"])
    out = reference.backward_data(x, w, size=size, **attrs)
    return out if b is None else out + b.reshape(1, -1, *(1,) * len(size))


def _check_geometry(op: str, axes: int, stride: Any, padding: Any, dilation: Any, extra: Any, groups: int) -> None:
    geometry = f"stride {stride}, padding {padding}, dilation {dilation}, output_padding {extra}, groups={groups}"
    if {len(stride), len(padding), len(dilation), len(extra)} != {axes}:
        raise OptionError(f"{op}: {geometry}; expected {counted(axes, 'number')} each, pairs of them for padding")
    if min(*stride, *dilation, groups) < 1 or min(p for pair in padding for p in pair) < 0:
        raise OptionError(f"{op}: {geometry}; expected >= 1, padding >= 0")
    if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
        raise OptionError(f"{op}: output_padding {extra} must be smaller than stride {stride} or dilation {dilation}")


def _groups_follow(
    attrs: Mapping[str, Any], old: tuple[int, ...], new: tuple[int, ...], step: int | None = None
) -> list[dict[str, Any]]:
    """A group for each sample where the channels hold the batch, as with kernels that are computed for each."""
    channels, more = old[1] // attrs["groups"], new[1]
    apart = old[1] != more and more % channels == 0
    return [{"groups": more // channels} if apart else {}]


class _Convolutions:
    """The records of the convolution over some spatial axes, its gradients and its adjoint."""

    def __init__(self, axes: int) -> None:
        self.axes, self.op, self.adjoint = axes, f"conv{axes}d", f"conv_transpose{axes}d"
        self.of_data, self.of_weight = f"{self.op}_backward_data", f"{self.op}_backward_weight"

    def define(self, *, quantized: bool) -> None:
        weighted = QuantRule("weighted", "qconv2d", weight_axis=lambda attrs: 0)
        adjoint = QuantRule("weighted", weight_axis=_transposed_axis, transposed=True)
        convolution = define(
            self.op,
            functools.partial(infer_conv, axes=self.axes),
            reference.convolution,
            self.vjp,
            _onnx("Conv"),
            self.samples,
            _conv_errors if self.axes == 2 else tuple,
            quant=weighted if quantized else FLOAT_ONLY,
            macs=window_macs,
            follow=_groups_follow,
        )
        gradient = no_onnx(f"gradient of {self.op}")
        data = functools.partial(self.gradient_samples, weight=False)
        weight = functools.partial(self.gradient_samples, weight=True)
        define(self.of_data, self.infer_data, reference.backward_data, self.data_vjp, gradient, data)
        define(self.of_weight, self.infer_weight, reference.backward_weight, self.weight_vjp, gradient, weight)
        transposed = define(
            self.adjoint,
            self.infer_adjoint,
            _transpose_reference,
            self.adjoint_vjp,
            _onnx("ConvTranspose", output_padding="output_padding"),
            self.adjoint_samples,
            quant=adjoint if quantized else FLOAT_ONLY,
            macs=lambda inputs, result, attrs: window_macs(inputs, inputs[0], attrs),
            follow=_groups_follow,
        )
        define_ordered(convolution, ordered.convolution)
        define_ordered(transposed, ordered.transposed)

    def gradients(self, ctx: Any, x: Tensor, ct: Tensor, w: Tensor) -> tuple[Any, Any]:
        """Gradients of (w * x) . ct with respect to x and w; None for one that is not needed."""
        attrs = _geometry(ctx.attrs)
        dx = apply(self.of_data, ct, w, size=x.shape[2:], **attrs) if ctx.needs[0] else None
        return dx, apply(self.of_weight, x, ct, kernel=w.shape[2:], **attrs) if ctx.needs[1] else None

    def vjp(self, ctx: Any, ct: Tensor) -> tuple:
        return *self.gradients(ctx, ctx.inputs[0], ct, ctx.inputs[1]), *_bias_gradient(ctx, ct)

    def samples(self) -> Iterator[Sample]:
        for x, w, attrs in _CASES[self.axes]:
            yield Sample((noise(*x), noise(*w)), attrs)
        x, w, attrs = _CASES[self.axes][0]
        yield Sample((noise(*x), noise(*w), noise(w[0])), attrs)

    def gradient_samples(self, *, weight: bool) -> Iterator[Sample]:
        for x, w, attrs in _CASES[self.axes]:
            specs = (TensorSpec(shape, np.dtype(float)) for shape in (x, w))
            out = infer_conv(*specs, **attrs, axes=self.axes).shape
            if weight:
                yield Sample((noise(*x), noise(*out)), {"kernel": w[2:], **attrs})
            else:
                yield Sample((noise(*out), noise(*w)), {"size": x[2:], **attrs})

    def check_cotangent(self, op: str, ct: TensorSpec, expected: tuple[Any, ...]) -> None:
        if ct.ndim != self.axes + 2 or any(n != m for n, m in zip(ct.shape, expected, strict=True) if m is not None):
            sizes = ", ".join("any" if n is None else str(n) for n in expected)
            raise ShapeError(f"{op}: the cotangent has shape {ct.shape}; expected ({sizes})")

    def infer_data(
        self, ct: TensorSpec, w: TensorSpec, *, size: Any, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> TensorSpec:
        _same_float(self.of_data, ct, w)
        out = check_window(self.of_data, size, w.shape[2:], stride, padding, dilation)
        self.check_cotangent(self.of_data, ct, (None, w.shape[0], *out))
        return TensorSpec((ct.shape[0], w.shape[1] * groups, *size), ct.dtype, ct.device)

    def data_vjp(self, ctx: Any, g: Tensor) -> tuple:
        ct, w = ctx.inputs
        attrs = _geometry(ctx.attrs)
        dct = apply(self.op, g, w, **attrs) if ctx.needs[0] else None
        return dct, apply(self.of_weight, g, ct, kernel=w.shape[2:], **attrs) if ctx.needs[1] else None

    def infer_weight(
        self, x: TensorSpec, ct: TensorSpec, *, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> TensorSpec:
        _same_float(self.of_weight, x, ct)
        out = check_window(self.of_weight, x.shape[2:], kernel, stride, padding, dilation)
        self.check_cotangent(self.of_weight, ct, (x.shape[0], None, *out))
        return TensorSpec((ct.shape[1], x.shape[1] // groups, *kernel), x.dtype, x.device)

    def weight_vjp(self, ctx: Any, g: Tensor) -> tuple:
        x, ct = ctx.inputs
        attrs = _geometry(ctx.attrs)
        dx = apply(self.of_data, ct, g, size=x.shape[2:], **attrs) if ctx.needs[0] else None
        return dx, apply(self.op, x, g, **attrs) if ctx.needs[1] else None

    def infer_adjoint(
        self,
        x: TensorSpec,
        w: TensorSpec,
        *b: TensorSpec,
        stride: Any,
        padding: Any,
        output_padding: Any,
        dilation: Any,
        groups: int,
    ) -> TensorSpec:
        op, (space, kernel) = self.adjoint, SPACE[self.axes]
        _same_float(op, x, w, *b)
        _check_geometry(op, self.axes, stride, padding, dilation, output_padding, groups)
        ranks = {x.ndim, w.ndim} == {self.axes + 2}
        if not ranks or x.shape[1] != w.shape[0] or w.shape[0] % groups:
            raise ShapeError(
                f"{op}: x has shape {x.shape}, w {w.shape}, groups={groups}; "
                f"expected x [N,I,{space}] and w [I,O/groups,{kernel}]"
            )
        check_taps(op, w.shape[2:])
        channels = w.shape[1] * groups
        if b and b[0].shape != (channels,):
            raise ShapeError(f"{op}: bias has shape {b[0].shape}; expected ({channels},)")
        size = _transposed_size(x, w, stride, padding, output_padding, dilation)
        if min(size) < 1:
            raise ShapeError(f"{op}: the result would have size {size}; padding {padding} is too large")
        return TensorSpec((x.shape[0], channels, *size), x.dtype, x.device)

    def adjoint_vjp(self, ctx: Any, ct: Tensor) -> tuple:
        x, w = ctx.inputs[:2]
        attrs = _geometry(ctx.attrs)
        dx = apply(self.op, ct, w, **attrs) if ctx.needs[0] else None
        dw = apply(self.of_weight, ct, x, kernel=w.shape[2:], **attrs) if ctx.needs[1] else None
        return dx, dw, *_bias_gradient(ctx, ct)

    def adjoint_samples(self) -> Iterator[Sample]:
        for x, w, attrs, extra in _TRANSPOSED[self.axes]:
            yield Sample((noise(*x), noise(*w)), {"output_padding": extra, **attrs})
        yield Sample((noise(*x), noise(*w), noise(w[1] * attrs["groups"])), {"output_padding": extra, **attrs})


def _transposed_axis(attrs: Mapping[str, Any]) -> int | None:
    return 1 if attrs.get("groups", 1) == 1 else None  # [I, O/groups, kh, kw]: groups share the axis


_Convolutions(2).define(quantized=True)
_Convolutions(3).define(quantized=False)


def one_dtype(op: str, *tensors: Any) -> list[Tensor]:
    """Those that are there, in the dtype that they have together."""
    present = [as_tensor(t) for t in tensors if t is not None]
    dtype = present[0].dtype
    if any(t.dtype != dtype for t in present) and get_op(op).weighted:  # those that mixed precision lowers
        present = list(mixed.lowered_beside(*present))
        dtype = present[0].dtype
    for t in present[1:]:
        dtype = promote(op, dtype, t.dtype)
    return [t if t.dtype == dtype else apply("cast", t, dtype=dtype) for t in present]


def plain_weight(op: str, w: Tensor, groups: int, axes: int) -> Tensor:
    """MegEngine's grouped weight (groups, O/groups, ...) as [O, ...] with `axes` axes; other weights unchanged."""
    if w.ndim != axes + 1:
        return w
    if w.shape[0] != groups:
        raise ShapeError(f"{op}: weight {w.shape} has {counted(w.shape[0], 'group')}, got groups={groups}")
    return apply("reshape", w, shape=(w.shape[0] * w.shape[1], *w.shape[2:]))


def broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """True if a value of one shape can be added to one of another, whose shape does not change by it."""
    tail = wanted[len(wanted) - len(shape) :]
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in zip(shape, tail, strict=True))


def bias_of_channels(bias: Tensor, result: tuple[int, ...]) -> Tensor:
    """A bias as a term of a result [N,C,...]: [C], what broadcasts to it, or a number per channel in any shape."""
    if bias.shape != result[1:2] and broadcasts_to(bias.shape, result):
        return bias
    return apply("reshape", bias, shape=(1, result[1], *(1 for _ in result[2:])))


def _adds_bias(op: str, w: Tensor, bias: Tensor, groups: int) -> bool:
    """True if the op itself adds a bias: (O,), (O,1,1), (1,O,1,1), or one that it refuses with the weight."""
    if w.ndim < 3 or not isinstance(groups, int):
        return True
    channels, ones = w.shape[1] * groups if op.startswith("conv_transpose") else w.shape[0], (1,) * (w.ndim - 2)
    return bias.shape in ((channels,), (channels, *ones), (1, channels, *ones))


def convolved(
    op: str, tensors: list[Tensor], stride: Any, padding: Any, dilation: Any, groups: int, axes: int = 2, **more: Any
) -> Tensor:
    """The op on x, the weight (grouped or not) and the bias, if there is one: [O], what broadcasts to the result, as in
    MegEngine, or a number per channel in any shape.
    """
    tensors[1] = plain_weight(op, tensors[1], groups, axes + 2)
    if len(tensors) == 3 and not _adds_bias(op, tensors[1], tensors[2], groups):
        y = convolved(op, tensors[:2], stride, padding, dilation, groups, axes, **more)
        if broadcasts_to(tensors[2].shape, y.shape):
            return y + (tensors[2] if tensors[2].dtype == y.dtype else apply("cast", tensors[2], dtype=y.dtype))
    if len(tensors) == 3 and tensors[2].ndim != 1:
        tensors[2] = apply("reshape", tensors[2], shape=(tensors[2].size,))
    pads = pad_pairs(op, padding) if axes == 2 else tuple((n, n) for n in tuple_of(op, "padding", padding, axes))
    return apply(
        op,
        *tensors,
        stride=tuple_of(op, "stride", stride, axes),
        padding=pads,
        dilation=tuple_of(op, "dilation", dilation, axes),
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

    bias: [O], (1,O,1,1), or what broadcasts to the result. padding: one number, one per axis, or a pair (before,
    after) per axis. Returns [N,O,oh,ow]. Raises ShapeError where shapes do not fit.
    """
    check_modes("conv2d", conv_mode, compute_mode)
    return convolved("conv2d", one_dtype("conv2d", inp, weight, bias), stride, padding, dilation, groups)


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

    bias: [O], (1,O,1,1), or what broadcasts to the result. A 5-d weight is (groups, I/groups, O/groups, kh, kw).
    """
    name = "conv_transpose2d"
    check_modes(name, conv_mode, compute_mode)
    tensors = one_dtype(name, inp, weight, bias)
    if tensors[0].dtype == np.int8:  # sums of products do not fit int8
        tensors = [apply("cast", t, dtype=np.dtype(np.int32)) for t in tensors]
    extra = pair(name, "output_padding", output_padding)
    return convolved(name, tensors, stride, padding, dilation, groups, output_padding=extra)
