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
from megengine.dispatch import ErrorSample, Sample, define, no_onnx, not_differentiable
from megengine.kernels.reference import integer
from megengine.ops.common import FLOAT32, noise
from megengine.ops.quantized import rounding_infer, straight_through, target_dtype
from megengine.tensor import Tensor

_NO_ONNX = no_onnx("ONNX rounds ties to even")


def _infer(x: TensorSpec, *, dtype: QuantizedDType, factor: float | None) -> TensorSpec:
    if x.dtype != FLOAT32 and not isinstance(x.dtype, QuantizedDType):
        raise DTypeError(f"quantize_away: x is {x.dtype}; expected float32 or a quantized tensor; use .astype")
    check_scales("quantize_away", target_dtype("quantize_away", dtype, per_axis=True), x.shape)
    return TensorSpec(x.shape, dtype, x.device)


def _factor(dtype: QuantizedDType, ndim: int, factor: float | None) -> np.ndarray:
    if factor is not None:
        return np.asarray(factor, np.float32)
    return np.float32(1) / integer.along(dtype.scale, dtype.axis, ndim)


def _quantize(x: np.ndarray, dtype: QuantizedDType, factor: float | None, in_specs: Any, **_: Any) -> np.ndarray:
    source = in_specs[0].dtype
    if isinstance(source, QuantizedDType):
        x = (x.astype(np.int32) - source.zero_point).astype(np.float32)
    d = dtype
    return integer.convert(x, _factor(d, x.ndim, factor), d.zero_point, d.qmin, d.qmax, d.storage)


def _fake(x: np.ndarray, dtype: QuantizedDType, **_: Any) -> np.ndarray:
    d = dtype
    q = integer.convert(x, _factor(d, x.ndim, None), d.zero_point, d.qmin, d.qmax, d.storage)
    return integer.dequantize(q, d.scale, d.zero_point, d.axis)


_U8, _S8 = quint8(0.02, 13), qint8(0.03)
_PER_CHANNEL = qint8((0.01, 0.02, 0.05, 0.04), axis=0)


def _stored(*shape: int) -> Tensor:
    values = np.random.default_rng(list(shape)).integers(0, 256, shape)
    return Tensor._wrap(values.astype(np.uint8), _U8)


def _samples() -> Iterator[Sample]:
    for dtype in (_U8, _S8, _PER_CHANNEL):
        yield Sample((noise(4, 3, 5),), {"dtype": dtype, "factor": None})
    yield Sample((noise(0, 3),), {"dtype": _S8, "factor": None})
    yield Sample((_stored(2, 30),), {"dtype": _S8, "factor": 0.625})


_INTEGERS = np.zeros(3, np.int32)


def _errors(op: str, **attrs: Any) -> Any:
    def samples() -> Iterator[ErrorSample]:
        yield ErrorSample((_INTEGERS,), {"dtype": _S8, **attrs}, DTypeError, f"{op}: x is int32; expected float32")
        floats = np.zeros(3, np.float32)
        yield ErrorSample((floats,), {"dtype": "int8", **attrs}, DTypeError, f"{op}: dtype is 'int8'; expected a quant")

    return samples


define(
    "quantize_away",
    _infer,
    _quantize,
    not_differentiable("integers carry no gradient; differentiate fake_quant_away"),
    _NO_ONNX,
    _samples,
    _errors("quantize_away", factor=None),
    needs_specs=True,
)
define(
    "fake_quant_away",
    rounding_infer("fake_quant_away", fake=True),
    _fake,
    # half a step beyond the ends of the range, rounding does not clamp yet
    lambda ctx, ct: straight_through(ctx, ct, "greater", "less", beyond=0.5),
    _NO_ONNX,
    lambda: [Sample((noise(4, 3, 5),), {"dtype": dtype}, differentiable=False) for dtype in (_U8, _PER_CHANNEL)],
    _errors("fake_quant_away"),
    needs_specs=True,
)
