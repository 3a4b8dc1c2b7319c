"""The same values in another dtype, or without their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, as_dtype, is_float
from megengine.core.errors import DTypeError
from megengine.core.spec import TensorSpec
from megengine.core.types import DTypeLike, TensorLike
from megengine.dispatch import ONNX_WRITER, ErrorSample, QuantRule, Sample, apply, define, not_differentiable, public
from megengine.ops.common import FLOAT32, as_tensor, lift_plain, sample_values
from megengine.tensor import Tensor


def _cast_infer(x: TensorSpec, *, dtype: Any) -> TensorSpec:
    if isinstance(dtype, QuantizedDType) or isinstance(x.dtype, QuantizedDType):
        raise DTypeError(f"cast: {x.dtype} to {dtype}; quantized types are reached by quantize and dequantize")
    return TensorSpec(x.shape, dtype, x.device)


def _cast(x: np.ndarray, dtype: Any) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(dtype)


define(
    "cast",
    _cast_infer,
    _cast,
    lambda ctx, ct: (apply("cast", ct, dtype=ctx.inputs[0].dtype) if is_float(ctx.inputs[0].dtype) else None,),
    ONNX_WRITER,
    lambda: [
        Sample((sample_values(3, 4),), {"dtype": FLOAT32}, False),
        Sample((sample_values(0, 4),), {"dtype": FLOAT32}, False),
    ],
    quant=QuantRule("part"),
    moves=True,
    by_type=True,
    lift=lift_plain,
)


def _bits_infer(x: TensorSpec, *, dtype: Any) -> TensorSpec:
    if isinstance(dtype, QuantizedDType) or isinstance(x.dtype, QuantizedDType) or dtype.itemsize != x.dtype.itemsize:
        raise DTypeError(f"bitcast: {x.dtype} to {dtype}; expected plain dtypes of as many bytes")
    return TensorSpec(x.shape, dtype, x.device)


define(
    "bitcast",
    _bits_infer,
    lambda x, dtype: np.ascontiguousarray(x).reshape(x.shape).view(dtype),
    not_differentiable("bits are not numbers"),
    ONNX_WRITER,
    lambda: [Sample((np.arange(6, dtype=np.int32).reshape(2, 3),), {"dtype": FLOAT32}, False)],
    lambda: [ErrorSample((np.zeros(2, np.int8),), {"dtype": FLOAT32}, DTypeError, "expected plain dtypes of as many")],
    by_type=True,
    lift=lift_plain,
)


@public(home="megengine.tensor", methods=("astype",), by_spec=True)
def astype(inp: TensorLike, dtype: DTypeLike) -> Tensor:
    """The tensor in another dtype; to and from quantized dtypes by quantizing and dequantizing."""
    x, wanted = as_tensor(inp), as_dtype(dtype)
    if x.dtype == wanted:
        return x
    if isinstance(wanted, QuantizedDType):
        return apply("quantize", x if x.dtype == FLOAT32 else astype(x, FLOAT32), dtype=wanted)
    if isinstance(x.dtype, QuantizedDType):
        return astype(apply("dequantize", x), wanted)
    return apply("cast", x, dtype=wanted)


@public(home="megengine.tensor", methods=("detach",))
def detach(self: Tensor) -> Tensor:
    """The same value, without gradients."""
    if self._value is not None:
        return Tensor._of_spec(self._value, self.spec)
    if self._thunk is None:
        return self  # while ops are recorded there are no values to differentiate
    return Tensor._deferred(self.spec, self._thunk)
