"""Ops on quantized tensors: docs/integer-arithmetic.md as records. References run the executable specification.

`lo` and `hi` are the clamp relative to the output's zero point; scales and zero points come from the operands' dtypes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, check_scales, qint8, quint8, storage_of
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import ONNX_WRITER, ErrorSample, Sample, apply, define, no_onnx, not_differentiable, stays_float
from megengine.kernels.reference import integer
from megengine.kernels.reference.integer import Output
from megengine.ops.common import (
    FLOAT32,
    INT32,
    broadcast_shapes,
    lift_axes,
    lift_plain,
    masked,
    noise,
    normalize_axes,
    normalize_axis,
    reduced_shape,
)
from megengine.ops.conv import check_conv, check_window, window_macs
from megengine.ops.matmul import product_macs
from megengine.tensor import Tensor

_NO_GRADIENT = not_differentiable("integers carry no gradient; differentiate fake_quant")
_INTEGER = stays_float("it is integer arithmetic itself")
_FEW_BITS = (np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int16))


def few_bits(op: str, argument: str, spec: TensorSpec) -> QuantizedDType:
    dtype = spec.dtype
    if not isinstance(dtype, QuantizedDType) or dtype.storage not in _FEW_BITS or dtype.axis is not None:
        raise DTypeError(
            f"{op}: {argument} is {dtype}; expected an 8-bit or 16-bit quantized tensor with one scale; quantize it"
        )
    return dtype


def target_dtype(op: str, dtype: Any, *, per_axis: bool = False) -> QuantizedDType:
    if not isinstance(dtype, QuantizedDType) or (dtype.axis is not None and not per_axis):
        raise DTypeError(f"{op}: dtype is {dtype!r}; expected a quantized dtype such as quint8(scale, zero_point)")
    return dtype


def check_clamp(op: str, lo: int, hi: int, dtype: QuantizedDType) -> None:
    least, most = dtype.qmin - dtype.zero_point, dtype.qmax - dtype.zero_point
    if not least <= lo <= hi <= most:
        raise OptionError(f"{op}: clamp [{lo}, {hi}] is not inside [{least}, {most}] of {dtype} (less its zero point)")


def _check_channels(op: str, o: int, b: TensorSpec, M: TensorSpec, B: TensorSpec) -> None:
    for name, spec, dtype in (("b", b, INT32), ("M", M, FLOAT32), ("B", B, FLOAT32)):
        if spec.shape != (o,) or spec.dtype != dtype:
            raise ShapeError(f"{op}: {name} is {spec.dtype} of shape {spec.shape}; expected {dtype} of shape ({o},)")


def _check_operands(op: str, x: TensorSpec, w: TensorSpec) -> None:
    few_bits(op, "x", x)
    if storage_of(w.dtype) != np.int8:
        raise DTypeError(f"{op}: w is {w.dtype}; expected int8 storage with zero point 0")


def check_ratio(op: str, name: str, ratio: float) -> None:
    if np.float32(ratio) != integer.cut16(ratio):
        raise OptionError(f"{op}: {name} {ratio!r} has more than 16 significant bits; round it with cut16")


def check_factor(op: str, m: float) -> None:
    if not 0 < m < np.inf or np.float32(m) != m:
        raise OptionError(f"{op}: m is {m!r}; expected a positive float32, multiplier(s_a, s_r, s_y)")


def _check_residual(op: str, shape: tuple[int, ...], r: tuple[TensorSpec, ...], dtype: Any, ratio: float) -> None:
    if not r:
        return
    few_bits(op, "the residual", r[0])
    if r[0].shape != shape:
        raise ShapeError(f"{op}: the residual has shape {r[0].shape}; expected {shape}")
    if dtype == "float32":
        raise OptionError(f"{op}: a float32 result takes no residual; give a quantized dtype")
    check_ratio(op, "ratio", ratio)


def output_dtype(op: str, dtype: Any, lo: int, hi: int) -> Any:
    if isinstance(dtype, str) and dtype == "float32":
        return FLOAT32
    check_clamp(op, lo, hi, target_dtype(op, dtype))
    return dtype


def output_of(dtype: Any, lo: int | None = None, hi: int | None = None) -> Output:
    if not isinstance(dtype, QuantizedDType):
        return Output(dtype=np.float32)
    z = dtype.zero_point
    lo = dtype.qmin - z if lo is None else lo
    hi = dtype.qmax - z if hi is None else hi
    return Output(lo=lo, hi=hi, z_y=z, dtype=dtype.storage)


def rounding_infer(op: str, *, fake: bool) -> Callable[..., TensorSpec]:
    """The `infer` of an op that rounds float32 to the integers of a dtype; with `fake` the result is float32 again."""

    def infer(x: TensorSpec, *, dtype: QuantizedDType) -> TensorSpec:
        if x.dtype != FLOAT32:
            raise DTypeError(f"{op}: x is {x.dtype}; expected float32; use .astype")
        check_scales(op, target_dtype(op, dtype, per_axis=True), x.shape)
        return x if fake else TensorSpec(x.shape, dtype, x.device)

    return infer


def _quantize(x: np.ndarray, dtype: QuantizedDType, **_: Any) -> np.ndarray:
    d = dtype
    return integer.quantize(x, d.scale, d.zero_point, d.qmin, d.qmax, d.storage, d.axis)


def _dequantize_infer(q: TensorSpec) -> TensorSpec:
    if not isinstance(q.dtype, QuantizedDType):
        raise DTypeError(f"dequantize: q is {q.dtype}; expected a quantized tensor")
    check_scales("dequantize", q.dtype, q.shape)
    return TensorSpec(q.shape, FLOAT32, q.device)


def _dequantize(q: np.ndarray, in_specs: Any, **_: Any) -> np.ndarray:
    d = in_specs[0].dtype
    return integer.dequantize(q, d.scale, d.zero_point, d.axis)


def _fake_quant(x: np.ndarray, dtype: QuantizedDType, **_: Any) -> np.ndarray:
    d = dtype
    q = integer.quantize(x, d.scale, d.zero_point, d.qmin, d.qmax, np.int32, d.axis)
    return integer.dequantize(q, d.scale, d.zero_point, d.axis)


def straight_through(ctx: Any, ct: Tensor, above: str, below: str, beyond: float = 0.0) -> tuple[Tensor]:
    """The cotangent where x / scale lies in the range of the dtype, widened by `beyond` on both sides; else zero.

    `above` and `below` name the comparisons with the ends of the range.
    """
    (x,), d = ctx.inputs, ctx.attrs["dtype"]
    t = apply("div", x, Tensor(integer.along(d.scale, d.axis, x.ndim), device=x.device))
    for comparison, end in ((above, d.qmin - beyond), (below, d.qmax + beyond)):
        inside = apply(comparison, t, Tensor(np.asarray(end - d.zero_point, np.float32), device=x.device))
        ct = masked(ct, inside)
    return (ct,)


def _qconv_infer(
    x: TensorSpec,
    w: TensorSpec,
    b: TensorSpec,
    M: TensorSpec,
    B: TensorSpec,
    *r: TensorSpec,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
    lo: int,
    hi: int,
    ratio: float,
    dtype: Any,
) -> TensorSpec:
    op = "qconv2d"
    _check_operands(op, x, w)
    check_conv(op, x, w, groups)
    _check_channels(op, w.shape[0], b, M, B)
    out = check_window(op, x.shape[2:], w.shape[2:], stride, padding, dilation)
    spec = TensorSpec((x.shape[0], w.shape[0], *out), output_dtype(op, dtype, lo, hi), x.device)
    _check_residual(op, spec.shape, r, dtype, ratio)
    return spec


def _qlinear_infer(
    x: TensorSpec,
    w: TensorSpec,
    b: TensorSpec,
    M: TensorSpec,
    B: TensorSpec,
    *r: TensorSpec,
    lo: int,
    hi: int,
    ratio: float,
    dtype: Any,
) -> TensorSpec:
    op = "qlinear"
    _check_operands(op, x, w)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[1]:
        raise ShapeError(f"{op}: x has shape {x.shape}, w {w.shape}; expected x [..., K] and w [O, K]")
    _check_channels(op, w.shape[0], b, M, B)
    spec = TensorSpec((*x.shape[:-1], w.shape[0]), output_dtype(op, dtype, lo, hi), x.device)
    _check_residual(op, spec.shape, r, dtype, ratio)
    return spec


def _centred_residual(r: tuple[np.ndarray, ...], in_specs: Any) -> np.ndarray | None:
    return r[0].astype(np.int32) - in_specs[5].dtype.zero_point if r else None


def _qconv(x: Any, w: Any, b: Any, M: Any, B: Any, *r: Any, in_specs: Any, out_specs: Any, **a: Any) -> np.ndarray:
    geometry = {k: a[k] for k in ("stride", "padding", "dilation", "groups")}
    acc = integer.conv_acc(x, w, z_x=in_specs[0].dtype.zero_point, **geometry)
    out = output_of(a["dtype"], a["lo"], a["hi"])
    return integer.epilogue(acc, b, M, B, out, residual=_centred_residual(r, in_specs), ratio=a["ratio"])


def _qlinear(x: Any, w: Any, b: Any, M: Any, B: Any, *r: Any, in_specs: Any, out_specs: Any, **a: Any) -> np.ndarray:
    acc = integer.linear_acc(x, w, z_x=in_specs[0].dtype.zero_point)
    out = output_of(a["dtype"], a["lo"], a["hi"])
    return integer.epilogue(acc, b, M, B, out, axis=-1, residual=_centred_residual(r, in_specs), ratio=a["ratio"])


# ---------------------------------------------------------------- elementwise


def pair_infer(op: str) -> Callable[..., TensorSpec]:
    """The `infer` of an op on two operands that brings both to the scale of the result."""

    def infer(
        a: TensorSpec, r: TensorSpec, *, ra: float, rb: float, lo: int, hi: int, dtype: QuantizedDType
    ) -> TensorSpec:
        few_bits(op, "a", a)
        few_bits(op, "r", r)
        check_clamp(op, lo, hi, target_dtype(op, dtype))
        check_ratio(op, "ra", ra)
        check_ratio(op, "rb", rb)
        return TensorSpec(broadcast_shapes(op, a.shape, r.shape), dtype, a.device)

    return infer


def pair_reference(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The reference of such an op, from its function in the specification."""

    def reference(a: Any, r: Any, ra: float, rb: float, lo: int, hi: int, dtype: Any, in_specs: Any, **_: Any) -> Any:
        z_a, z_r = (s.dtype.zero_point for s in in_specs)
        return function(a, r, output_of(dtype, lo, hi), ra=ra, rb=rb, z_a=z_a, z_r=z_r)

    return reference


def _qmul_infer(a: TensorSpec, r: TensorSpec, *, m: float, lo: int, hi: int, dtype: QuantizedDType) -> TensorSpec:
    few_bits("qmul", "a", a)
    few_bits("qmul", "r", r)
    check_clamp("qmul", lo, hi, target_dtype("qmul", dtype))
    check_factor("qmul", m)
    return TensorSpec(broadcast_shapes("qmul", a.shape, r.shape), dtype, a.device)


def _qmul(a: Any, r: Any, m: float, lo: int, hi: int, dtype: Any, in_specs: Any, **_: Any) -> np.ndarray:
    z_a, z_r = (s.dtype.zero_point for s in in_specs)
    return integer.multiply(a, r, output_of(dtype, lo, hi), m=m, z_a=z_a, z_r=z_r)


def _requantize_infer(x: TensorSpec, *, ratio: float, lo: int, hi: int, dtype: QuantizedDType) -> TensorSpec:
    few_bits("requantize", "x", x)
    check_clamp("requantize", lo, hi, target_dtype("requantize", dtype))
    check_ratio("requantize", "ratio", ratio)
    return TensorSpec(x.shape, dtype, x.device)


def _requantize(x: Any, ratio: float, lo: int, hi: int, dtype: Any, in_specs: Any, **_: Any) -> np.ndarray:
    return integer.requantize(x, output_of(dtype, lo, hi), ratio=ratio, z_x=in_specs[0].dtype.zero_point)


def _qtable_infer(x: TensorSpec, table: TensorSpec, *, dtype: QuantizedDType, axis: int | None = None) -> TensorSpec:
    codes = few_bits("qtable", "x", x).codes
    storage, entries = target_dtype("qtable", dtype).storage, storage_of(table.dtype)
    shape = (codes,) if axis is None else (x.shape[normalize_axis("qtable", axis, x.ndim)], codes)
    if table.shape != shape or entries != storage:
        raise ShapeError(f"qtable: table is {entries} of shape {table.shape}; expected {storage} of shape {shape}")
    return TensorSpec(x.shape, dtype, x.device)


def _qavg_infer(
    x: TensorSpec, *, kernel: Any, stride: Any, padding: Any, count_include_pad: bool, dtype: QuantizedDType
) -> TensorSpec:
    op = "qavg_pool2d"
    few_bits(op, "x", x)
    if x.ndim != 4:
        raise ShapeError(f"{op}: x has shape {x.shape}; expected [N,C,H,W]")
    out = check_window(op, x.shape[2:], kernel, stride, padding, (1, 1))
    if any(max(p) >= k for p, k in zip(padding, kernel, strict=True)):
        raise OptionError(f"{op}: padding {padding} must be smaller than the window {kernel}")
    return TensorSpec((*x.shape[:2], *out), target_dtype(op, dtype), x.device)


def _qavg(x: np.ndarray, dtype: Any, in_specs: Any, out_specs: Any, **window: Any) -> np.ndarray:
    d = in_specs[0].dtype
    return integer.avg_pool2d(x, output_of(dtype), s_x=d.scale, s_y=dtype.scale, z_x=d.zero_point, **window)


def _qmean_infer(op: str) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, *, axis: Any, keepdims: bool, dtype: QuantizedDType) -> TensorSpec:
        few_bits(op, "x", x)
        shape = reduced_shape(x.shape, normalize_axes(op, axis, x.ndim), keepdims)
        if x.size == 0 and np.prod(shape) != 0:
            raise ShapeError(f"{op}: x has shape {x.shape}; the {op[1:]} of no elements is undefined")
        return TensorSpec(shape, target_dtype(op, dtype), x.device)

    return infer


def _qmean(x: np.ndarray, dtype: Any, in_specs: Any, out_specs: Any, **how: Any) -> np.ndarray:
    d = in_specs[0].dtype
    return integer.mean(x, output_of(dtype), s_x=d.scale, s_y=dtype.scale, z_x=d.zero_point, **how)


# ---------------------------------------------------------------- samples

U8, S8 = quint8(0.02, 13), qint8(0.03, -5)


def stored(dtype: QuantizedDType, *shape: int) -> Tensor:
    values = np.random.default_rng(list(shape)).integers(dtype.qmin, dtype.qmax + 1, shape)
    return Tensor._wrap(values.astype(dtype.storage), dtype)


def _channels(o: int, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(o)
    M = (rng.random(o) + 0.5).astype(np.float32) / np.float32(75 * np.sqrt(k))
    return rng.integers(-900, 900, o).astype(np.int32), M, rng.normal(0, 20, o).astype(np.float32)


def _weight(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).integers(-127, 128, shape).astype(np.int8)


def _geometry(stride: Any = (1, 1), pad: int = 0, groups: int = 1) -> dict[str, Any]:
    return {"stride": stride, "padding": ((pad, pad), (pad, pad)), "dilation": (1, 1), "groups": groups}


_CLAMP_U8 = {"lo": -13, "hi": 242, "ratio": 0.0, "dtype": U8}
_CLAMP_S8 = {"lo": 0, "hi": 100, "ratio": 0.0, "dtype": S8}
_FLOAT = {"lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"}


def _qconv_samples() -> Iterator[Sample]:
    x = stored(U8, 2, 8, 9, 7)
    yield Sample((x, _weight(12, 8, 3, 3), *_channels(12, 72)), {**_geometry(pad=1), **_CLAMP_U8})
    yield Sample((x, _weight(8, 1, 3, 3), *_channels(8, 9)), {**_geometry((2, 2), 1, 8), **_CLAMP_S8})
    yield Sample((stored(S8, 1, 8, 5, 5), _weight(6, 4, 1, 1), *_channels(6, 4)), {**_geometry(groups=2), **_FLOAT})
    residual = {**_geometry(), **_CLAMP_U8, "ratio": 0.75}
    yield Sample((x, _weight(10, 8, 1, 1), *_channels(10, 8), stored(S8, 2, 10, 9, 7)), residual)


PLAIN = np.zeros((1, 2, 4, 4), np.float32)
_WINDOW = {"kernel": (3, 3), "stride": (2, 2), "padding": ((1, 1), (1, 1))}


def _conv_errors() -> Iterator[ErrorSample]:
    inputs = (PLAIN, np.zeros((2, 2, 1, 1), np.int8), np.zeros(2, np.int32), *[np.zeros(2, np.float32)] * 2)
    yield ErrorSample(inputs, {**_geometry(), **_CLAMP_U8}, DTypeError, "qconv2d: x is float32; expected an 8-bit")


def _linear_errors() -> Iterator[ErrorSample]:
    inputs = (PLAIN, np.zeros((2, 4), np.int8), np.zeros(2, np.int32), *[np.zeros(2, np.float32)] * 2)
    yield ErrorSample(inputs, _CLAMP_U8, DTypeError, "qlinear: x is float32; expected an 8-bit")


def one_error(inputs: tuple, attrs: dict[str, Any], match: str) -> Any:
    return lambda: [ErrorSample(inputs, attrs, DTypeError, match)]


def record(
    name: str, infer: Any, reference: Any, samples: Any, errors: Any, vjp: Any = _NO_GRADIENT, **more: Any
) -> None:
    more = {"onnx": ONNX_WRITER, "quant": _INTEGER, "needs_specs": True, **more}
    define(name, infer, reference, vjp, samples=samples, error_samples=errors, **more)


record(
    "quantize",
    rounding_infer("quantize", fake=False),
    _quantize,
    lambda: [
        Sample((noise(2, 3, 5, 4),), {"dtype": U8}),
        Sample((noise(4, 3),), {"dtype": qint8((0.01, 0.02, 0.05, 0.04), axis=0)}),
        Sample((noise(0, 3),), {"dtype": S8}),
    ],
    one_error((PLAIN,), {"dtype": "int8"}, "quantize: dtype is 'int8'; expected a quantized dtype"),
    lift=lift_plain,
    quantizes=True,
)
record(
    "dequantize",
    _dequantize_infer,
    _dequantize,
    lambda: [Sample((stored(U8, 2, 3, 5, 4),)), Sample((stored(S8, 7),))],
    one_error((PLAIN,), {}, "dequantize: q is float32"),
    lift=lift_plain,
    dequantizes=True,
)
record(
    "fake_quant",
    rounding_infer("fake_quant", fake=True),
    _fake_quant,
    lambda: [
        Sample((noise(2, 3, 5, 4),), {"dtype": U8}, differentiable=False),
        Sample((noise(3, 4),), {"dtype": qint8((0.01, 0.02, 0.05, 0.04), axis=1)}, differentiable=False),
    ],
    one_error((PLAIN,), {"dtype": "int8"}, "fake_quant: dtype is 'int8'"),
    lambda ctx, ct: straight_through(ctx, ct, "greater_equal", "less_equal"),
    onnx=no_onnx("it is part of training; quantize the network and export that"),
)
record("qconv2d", _qconv_infer, _qconv, _qconv_samples, _conv_errors, macs=window_macs)
record(
    "qlinear",
    _qlinear_infer,
    _qlinear,
    lambda: [
        Sample((stored(U8, 3, 20), _weight(7, 20), *_channels(7, 20)), _CLAMP_U8),
        Sample((stored(S8, 2, 3, 20), _weight(7, 20), *_channels(7, 20)), _FLOAT),
        Sample(
            (stored(U8, 2, 3, 4, 20), _weight(7, 20), *_channels(7, 20), stored(U8, 2, 3, 4, 7)),
            {**_CLAMP_S8, "ratio": 0.5},
        ),
        Sample((stored(U8, 3, 20), _weight(7, 20), *_channels(7, 20), stored(U8, 3, 7)), {**_CLAMP_S8, "ratio": 0.5}),
    ],
    _linear_errors,
    macs=product_macs,
)
record(
    "qadd",
    pair_infer("qadd"),
    pair_reference(integer.add),
    lambda: [
        Sample(
            (stored(U8, 2, 3, 4, 4), stored(S8, 2, 3, 4, 4)),
            {"ra": 0.75, "rb": 1.25, "lo": -13, "hi": 242, "dtype": U8},
        ),
        Sample((stored(U8, 5, 4), stored(U8, 1, 4)), {"ra": 0.5, "rb": 0.5, "lo": 0, "hi": 100, "dtype": S8}),
    ],
    one_error((PLAIN, PLAIN), {"ra": 0.5, "rb": 0.5, "lo": 0, "hi": 9, "dtype": U8}, "qadd: a is float32"),
    lift=lift_plain,
)
record(
    "qmul",
    _qmul_infer,
    _qmul,
    lambda: [
        Sample((stored(U8, 2, 3, 4, 5), stored(S8, 2, 3, 4, 5)), {"m": 0.0078125, "lo": -13, "hi": 242, "dtype": U8}),
        Sample((stored(U8, 2, 3, 4, 5), stored(U8, 2, 3, 1, 1)), {"m": 0.015625, "lo": -100, "hi": 100, "dtype": S8}),
        Sample((stored(S8, 2, 3, 1, 1), stored(U8, 2, 3, 4, 5)), {"m": 0.015625, "lo": -13, "hi": 100, "dtype": U8}),
    ],
    one_error((PLAIN, PLAIN), {"m": 0.5, "lo": 0, "hi": 9, "dtype": U8}, "qmul: a is float32"),
    lift=lift_plain,
)
record(
    "requantize",
    _requantize_infer,
    _requantize,
    lambda: [Sample((stored(U8, 2, 3, 4, 5),), {"ratio": 0.6875, "lo": -123, "hi": 132, "dtype": S8})],
    one_error((PLAIN,), {"ratio": 0.5, "lo": 0, "hi": 9, "dtype": U8}, "requantize: x is float32"),
    lift=lift_plain,
)
record(
    "qtable",
    _qtable_infer,
    lambda x, table, axis=None, **_: integer.lookup(x, table, axis),
    lambda: [
        Sample((stored(S8, 3, 50), np.arange(256, dtype=np.uint8)[::-1].copy()), {"dtype": U8}),
        Sample((stored(U8, 2, 3, 4, 5), _weight(3, 256)), {"dtype": S8, "axis": 1}),
    ],
    one_error((PLAIN, np.zeros(256, np.uint8)), {"dtype": U8}, "qtable: x is float32"),
    lift=lambda attrs: lift_axes({"axis": None, **attrs}),
)
record(
    "qavg_pool2d",
    _qavg_infer,
    _qavg,
    lambda: [
        Sample((stored(U8, 2, 3, 7, 6),), {**_WINDOW, "count_include_pad": i, "dtype": S8}) for i in (True, False)
    ],
    one_error((PLAIN,), {**_WINDOW, "count_include_pad": True, "dtype": S8}, "qavg_pool2d: x is float32"),
)
for _name in ("qmean", "qsum"):
    record(
        _name,
        _qmean_infer(_name),
        functools.partial(_qmean, summed=_name == "qsum"),
        lambda: [
            Sample((stored(U8, 2, 5, 7, 7),), {"axis": (2, 3), "keepdims": True, "dtype": S8}),
            Sample((stored(S8, 4, 6),), {"axis": None, "keepdims": False, "dtype": U8}),
        ],
        one_error((PLAIN,), {"axis": None, "keepdims": False, "dtype": S8}, f"{_name}: x is float32"),
        lift=lift_axes,
    )
