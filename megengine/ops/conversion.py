"""MegEngine 1.x's conversion to integers: a product with the reciprocal scale, ties away from zero.

The section "The arithmetic of MegEngine's modules" of docs/integer-arithmetic.md as records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, check_scales, qint8, quint8
from megengine.core.errors import DTypeError
from megengine.core.spec import TensorSpec
from megengine.dispatch import ErrorSample, Op, Sample, apply, define, no_onnx, not_differentiable
from megengine.kernels.reference import integer
from megengine.ops.common import FLOAT32
from megengine.tensor import Tensor

_NO_ONNX = no_onnx("ONNX rounds ties to even")


def _target(op: str, dtype: Any) -> QuantizedDType:
    if not isinstance(dtype, QuantizedDType):
        raise DTypeError(f"{op}: dtype is {dtype!r}; expected a quantized dtype such as qint8(scale)")
    return dtype


def _infer(x: TensorSpec, *, dtype: QuantizedDType, factor: float | None) -> TensorSpec:
    if x.dtype != FLOAT32 and not isinstance(x.dtype, QuantizedDType):
        raise DTypeError(f"quantize_away: x is {x.dtype}; expected float32 or a quantized tensor; use .astype")
    check_scales("quantize_away", _target("quantize_away", dtype), x.shape)
    return TensorSpec(x.shape, dtype, x.device)


def _factor(dtype: QuantizedDType, ndim: int, factor: float | None) -> np.ndarray:
    if factor is not None:
        return np.asarray(factor, np.float32)
    return _along(np.float32(1) / np.asarray(dtype.scale, np.float32), dtype, ndim)


def _along(values: np.ndarray, dtype: QuantizedDType, ndim: int) -> np.ndarray:
    axis = None if dtype.axis is None else dtype.axis % ndim
    return values if axis is None else values.reshape([-1 if i == axis else 1 for i in range(ndim)])


def _quantize(x: np.ndarray, dtype: QuantizedDType, factor: float | None, in_specs: Any, **_: Any) -> np.ndarray:
    source = in_specs[0].dtype
    if isinstance(source, QuantizedDType):
        x = (x.astype(np.int32) - source.zero_point).astype(np.float32)
    d = dtype
    return integer.convert(x, _factor(d, x.ndim, factor), d.zero_point, d.qmin, d.qmax, d.storage)


def _fake_infer(x: TensorSpec, *, dtype: QuantizedDType) -> TensorSpec:
    if x.dtype != FLOAT32:
        raise DTypeError(f"fake_quant_away: x is {x.dtype}; expected float32; use .astype")
    check_scales("fake_quant_away", _target("fake_quant_away", dtype), x.shape)
    return x


def _fake(x: np.ndarray, dtype: QuantizedDType, **_: Any) -> np.ndarray:
    d = dtype
    q = integer.convert(x, _factor(d, x.ndim, None), d.zero_point, d.qmin, d.qmax, d.storage)
    return integer.dequantize(q, d.scale, d.zero_point, d.axis)


def _fake_vjp(ctx: Any, ct: Tensor) -> tuple[Tensor]:
    """Straight through where rounding does not clamp (half a step beyond the ends of the range)."""
    (x,), d = ctx.inputs, ctx.attrs["dtype"]
    t = apply("div", x, Tensor(_along(np.asarray(d.scale, np.float32), d, x.ndim)))
    for op, bound in (("greater", d.qmin - d.zero_point - 0.5), ("less", d.qmax - d.zero_point + 0.5)):
        inside = apply(op, t, Tensor(np.asarray(bound, np.float32)))
        ct = apply("mul", ct, apply("cast", inside, dtype=ct.dtype))
    return (ct,)


_U8, _S8 = quint8(0.02, 13), qint8(0.03)
_PER_CHANNEL = qint8((0.01, 0.02, 0.05, 0.04), axis=0)


def _x(*shape: int) -> np.ndarray:
    return np.random.default_rng(list(shape)).standard_normal(shape)


def _stored(*shape: int) -> Tensor:
    values = np.random.default_rng(list(shape)).integers(0, 256, shape)
    return Tensor._wrap(values.astype(np.uint8), _U8)


def _samples() -> Iterator[Sample]:
    for dtype in (_U8, _S8, _PER_CHANNEL):
        yield Sample((_x(4, 3, 5),), {"dtype": dtype, "factor": None})
    yield Sample((_x(0, 3),), {"dtype": _S8, "factor": None})
    yield Sample((_stored(2, 30),), {"dtype": _S8, "factor": 0.625})


def _fake_samples() -> Iterator[Sample]:
    for dtype in (_U8, _PER_CHANNEL):
        yield Sample((_x(4, 3, 5),), {"dtype": dtype}, differentiable=False)


_INTEGERS = np.zeros(3, np.int32)


def _errors(op: str, **attrs: Any) -> Any:
    def samples() -> Iterator[ErrorSample]:
        yield ErrorSample((_INTEGERS,), {"dtype": _S8, **attrs}, DTypeError, f"{op}: x is int32; expected float32")
        floats = np.zeros(3, np.float32)
        yield ErrorSample((floats,), {"dtype": "int8", **attrs}, DTypeError, f"{op}: dtype is 'int8'; expected a quant")

    return samples


define(
    Op(
        "quantize_away",
        _infer,
        _quantize,
        not_differentiable("integers carry no gradient; differentiate fake_quant_away"),
        _NO_ONNX,
        _samples,
        _errors("quantize_away", factor=None),
        needs_specs=True,
    )
)
define(
    Op(
        "fake_quant_away",
        _fake_infer,
        _fake,
        _fake_vjp,
        _NO_ONNX,
        _fake_samples,
        _errors("fake_quant_away"),
        needs_specs=True,
    )
)
