"""Arrays of integers that stand for real values, by MegEngine's names: their dtype carries scale and zero point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import QUANTIZED, QuantizedDType, as_dtype, bfloat16, is_differentiable
from megengine.core.errors import DTypeError, brief


@dataclass(frozen=True)
class LowBitDType:
    """A type of MegEngine whose values are the odd numbers of a few bits. It can be named, and holds nothing here."""

    name: str
    bits: int

    def __call__(self, *_: Any) -> Any:
        raise DTypeError(f"{self.name}: tensors of it do not exist; use a quantized type such as qint4(scale)")


intb1, intb2, intb4 = (LowBitDType(f"intb{bits}", bits) for bits in (1, 2, 4))


def is_bfloat16(dtype: Any) -> bool:
    """True for bfloat16."""
    return not isinstance(dtype, (LowBitDType, QuantizedDType)) and as_dtype(dtype) == bfloat16


def is_differentible_dtype(dtype: Any) -> bool:
    """True for dtypes whose values can have gradients. The name is spelt as MegEngine spells it."""
    return not isinstance(dtype, LowBitDType) and is_differentiable(as_dtype(dtype))


def is_dtype_equal(a: Any, b: Any) -> bool:
    """True for the same dtype, with the same scale and zero point."""
    if isinstance(a, LowBitDType) or isinstance(b, LowBitDType):
        return a == b
    return as_dtype(a) == as_dtype(b)


def _of_kind(what: str, dtype: Any, name: str) -> QuantizedDType:
    kind = as_dtype(dtype)
    if not isinstance(kind, QuantizedDType) or kind.storage != QUANTIZED[name][0] or not kind.name.startswith(name):
        example = f"{name}(0.1, 3)" if name.startswith("quint") else f"{name}(0.1)"
        raise DTypeError(f"{what} is {kind}; expected a dtype such as {example}")
    return kind


_KINDS = ("quint8", "qint8", "qint32", "quint4", "qint4", "qint1")


def _to(name: str) -> Callable[[np.ndarray, Any], np.ndarray]:
    def convert(arr: np.ndarray, q: Any) -> np.ndarray:
        dtype = _of_kind(f"convert_to_{name}: q", q, name)
        if not isinstance(arr, np.ndarray):
            raise DTypeError(f"convert_to_{name}: arr is {brief(arr)}; expected a NumPy array of real values")
        stored = np.round(arr / dtype.only_scale) + dtype.zero_point
        values = np.clip(stored, dtype.qmin, dtype.qmax).astype(dtype.storage)
        return values.view(dtype.numpy_dtype)

    convert.__name__ = convert.__qualname__ = f"convert_to_{name}"
    convert.__doc__ = f"Real values as integers of {name}, ties to even. Raises DTypeError unless `q` is of that type."
    return convert


def _from(name: str) -> Callable[[np.ndarray], np.ndarray]:
    def convert(arr: np.ndarray) -> np.ndarray:
        dtype = _of_kind(f"convert_from_{name}: the dtype of arr", getattr(arr, "dtype", arr), name)
        return (np.asarray(arr, np.float32) - np.float32(dtype.zero_point)) * np.float32(dtype.only_scale)

    convert.__name__ = convert.__qualname__ = f"convert_from_{name}"
    convert.__doc__ = f"Real values of integers of {name}. Raises DTypeError unless the array has such a dtype."
    return convert


convert_to_quint8, convert_to_qint8, convert_to_qint32, convert_to_quint4, convert_to_qint4, convert_to_qint1 = map(
    _to, _KINDS
)
(
    convert_from_quint8,
    convert_from_qint8,
    convert_from_qint32,
    convert_from_quint4,
    convert_from_qint4,
    convert_from_qint1,
) = map(_from, _KINDS)
