"""Results of public functions for quantized tensors: the rules of `public(quantized=...)`, as in MegEngine.

A rule gets the function and its arguments, one of which is a quantized tensor. It calls the function on the integers or
on the real values, or returns NotImplemented: then the function gets the arguments itself, and refuses them.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, qint32
from megengine.dispatch import apply
from megengine.ops.common import FLOAT32, INT32, as_tensor, cast, normalize_axes
from megengine.tensor import Tensor

Rule = Callable[..., Any]
_STORAGES = tuple(map(np.dtype, (np.int8, np.uint8, np.int32)))


def _one_scale(x: Any) -> QuantizedDType | None:
    """The dtype of a quantized tensor with one scale; None for anything else."""
    dtype = x.dtype if isinstance(x, Tensor) else None
    if isinstance(dtype, QuantizedDType) and dtype.axis is None and dtype.storage in _STORAGES:
        return dtype
    return None


def _scale(dtype: QuantizedDType) -> np.ndarray:
    return np.asarray(dtype.scale, np.float32)


def _steps(x: Tensor, dtype: QuantizedDType) -> Tensor:
    """Real values in steps of a scale, rounded half away from zero."""
    return apply("round", x * float(np.float32(1) / _scale(dtype)))


def _whole(q: Tensor, dtype: QuantizedDType) -> Tensor:
    """The integers of a quantized tensor above its zero point, as float32."""
    return _steps(apply("dequantize", q), dtype)


def _quantized(whole: Tensor, dtype: QuantizedDType) -> Tensor:
    """The quantized tensor of these integers above its zero point, clipped to the range of the dtype."""
    return apply("quantize", cast(whole, FLOAT32) * float(_scale(dtype)), dtype=dtype)


def on_reals(function: Rule, inp: Any, *args: Any, **kwargs: Any) -> Any:
    """The function of the real values: a float32 result."""
    return function(apply("dequantize", inp), *args, **kwargs) if _one_scale(inp) else NotImplemented


def on_whole(function: Rule, inp: Any, *args: Any, **kwargs: Any) -> Any:
    """The function of the integers above the zero point, in the dtype of the operand."""
    dtype = _one_scale(inp)
    return _quantized(function(_whole(inp, dtype), *args, **kwargs), dtype) if dtype else NotImplemented


def averaged(function: Rule, inp: Any, *args: Any, **kwargs: Any) -> Any:
    """Means of windows in the dtype of the operand: stored means are rounded half away from zero; padding is real 0."""
    dtype = _one_scale(inp)
    if dtype is None:
        return NotImplemented
    stored = apply("round", function(_whole(inp, dtype), *args, **kwargs) + dtype.zero_point)
    return _quantized(stored - dtype.zero_point, dtype)


def on_stored(function: Rule, inp: Any, *args: Any, **kwargs: Any) -> Any:
    """The function of the stored integers, in the dtype of the operand; padding values are stored integers too."""
    dtype = _one_scale(inp)
    if dtype is None:
        return NotImplemented
    stored = cast(_whole(inp, dtype) + dtype.zero_point, dtype.storage)
    y = function(stored, *args, **kwargs)
    return _quantized(cast(y, FLOAT32) - dtype.zero_point, dtype)


def warped(function: Rule, inp: Any, *args: Any, **kwargs: Any) -> Any:
    """As `on_stored`; with the channels last, points are not rounded as for other tensors."""
    call = inspect.signature(function).bind(inp, *args, **kwargs)
    call.apply_defaults()
    if call.arguments["format"] != "NHWC":
        return on_stored(function, inp, *args, **kwargs)
    call.arguments.update(inp=apply("transpose", inp, perm=(0, 3, 1, 2)), format="NCHW")
    y = on_stored(function, *call.args, **call.kwargs)
    return y if y is NotImplemented else apply("transpose", y, perm=(0, 2, 3, 1))


def summed(function: Rule, inp: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Sums in the dtype of the operand, clipped to its range; several axes are summed one after the other."""
    dtype = _one_scale(inp)
    if dtype is None:
        return NotImplemented
    if axis is None:
        return on_whole(function, inp, None, keepdims)
    for a in reversed(normalize_axes("sum", axis, inp.ndim)):
        inp = on_whole(function, inp, a, keepdims)
    return inp


def multiplied(function: Rule, a: Any, b: Any, *args: Any, **kwargs: Any) -> Any:
    """Products of 8-bit tensors of one storage type, as 32-bit integers whose scale is the product of both scales.

    A real left operand is quantized to the dtype of the right one.
    """
    x, y = _one_scale(a), _one_scale(b)
    if y and y.storage != INT32 and isinstance(a, Tensor) and not isinstance(a.dtype, QuantizedDType):
        x, a = y, apply("quantize", cast(a, FLOAT32), dtype=y)
    if x is None or y is None or x.storage != y.storage or x.storage == INT32:
        return NotImplemented
    total = function(cast(_whole(a, x), INT32), cast(_whole(b, y), INT32), *args, **kwargs)
    return _quantized(total, qint32(float(_scale(x) * _scale(y))))


def linear(function: Rule, inp: Any, weight: Any, bias: Any = None, compute_mode: str = "default") -> Any:
    """As `multiplied`, plus a bias of real numbers."""
    y = multiplied(function, inp, weight, None, compute_mode)
    return y if bias is None or y is NotImplemented else elementwise(operator.add, y, bias)


def elementwise(function: Rule, *operands: Any) -> Any:
    """Results in the common dtype of the quantized operands, whose zero point is 0.

    Other operands are converted to that dtype. Python's integers count as steps of the scale, and sums that overflow
    wrap, as in MegEngine.
    """
    dtypes = {_one_scale(v) for v in operands if isinstance(v, Tensor) and isinstance(v.dtype, QuantizedDType)}
    dtype = dtypes.pop()
    if dtypes or dtype is None or dtype.zero_point or dtype.storage == np.uint8:
        return NotImplemented
    return _quantized(function(*(cast(_integers(v, dtype), dtype.storage) for v in operands)), dtype)


def _integers(value: Any, dtype: QuantizedDType) -> Tensor:
    """An operand as integers of `dtype`, float32."""
    if _one_scale(value):
        return _whole(value, dtype)
    if isinstance(value, int):  # a boolean too
        return as_tensor(np.float32(value))
    steps = _steps(cast(as_tensor(value), FLOAT32), dtype)
    return apply("clip", steps, lo=float(dtype.qmin), hi=float(dtype.qmax))
