"""Quantized dtypes by MegEngine's names and signatures."""

# ruff: noqa: F401

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from megengine.core.dtype import (
    QUANTIZED,
    TO_MEGENGINE,
    QuantizedDType,
    bfloat16,
    from_metadata,
    is_quantized,
    quantized,
)
from megengine.core.errors import DTypeError, OptionError, nearest
from megengine.core.tensor.quantized_arrays import (
    LowBitDType,
    convert_from_qint1,
    convert_from_qint4,
    convert_from_qint8,
    convert_from_qint32,
    convert_from_quint4,
    convert_from_quint8,
    convert_to_qint1,
    convert_to_qint4,
    convert_to_qint8,
    convert_to_qint32,
    convert_to_quint4,
    convert_to_quint8,
    intb1,
    intb2,
    intb4,
    is_bfloat16,
    is_differentible_dtype,
    is_dtype_equal,
)


class _Meta(NamedTuple):
    name: str
    cname: str | None
    np_dtype_str: str
    qmin: int
    qmax: int
    is_unsigned: bool


class QuantDtypeMeta(_Meta):
    """An integer type without a scale: name, MegEngine's name, storage, and the integers it uses.

    One with a name of its own is a type of the caller's, for fake quantization.

    Example:
        >>> meta_of("qint8_narrow").qmin
        -127
    """

    __slots__ = ()

    def __new__(
        cls, name: str, cname: str | None, np_dtype_str: str, qmin: int, qmax: int, is_unsigned: bool | None = None
    ) -> QuantDtypeMeta:
        if is_unsigned is None:
            is_unsigned = np.dtype(np_dtype_str).kind == "u"
        return super().__new__(cls, name, cname, np_dtype_str, qmin, qmax, is_unsigned)

    @property
    def is_own(self) -> bool:
        """True for a type of the caller's."""
        return _METAS.get(self.name) != self

    @property
    def zero_points(self) -> bool:
        """True if tensors of this type have a zero point."""
        return bool(self.is_unsigned)


_METAS = {
    name: QuantDtypeMeta(name, TO_MEGENGINE[name], storage.name, qmin, qmax)
    for name, (storage, qmin, qmax) in QUANTIZED.items()
    if name != "qint16"  # of no fake quantization
}
_builtin_quant_dtypes = _METAS  # MegEngine's name
_BITS = {name: int(re.sub(r"\D", "", name)) for name in _METAS}


def meta_of(value: str | QuantDtypeMeta) -> QuantDtypeMeta:
    """The type of a name; a `QuantDtypeMeta` is given back.

    Raises:
        OptionError: no such name; the nearest one is given.
    """
    if isinstance(value, QuantDtypeMeta):
        return value
    if value not in _METAS:
        raise OptionError(f"dtype: unknown {value!r}; expected one of {sorted(_METAS)}{nearest(str(value), _METAS)}")
    return _METAS[value]


def create_quantized_dtype(dtype_meta: QuantDtypeMeta, scale: Any, zp: int | None) -> QuantizedDType:
    """The dtype of an integer type with a scale (a number, or one per output channel) and a zero point.

    Raises:
        OptionError: a zero point for a symmetric type, or none for an asymmetric one.
    """
    if dtype_meta.zero_points and zp is None:
        raise OptionError(f"{dtype_meta.name}: zp is None; expected an integer from {dtype_meta.qmin} on")
    if not dtype_meta.zero_points and not dtype_meta.is_own and zp not in (None, 0):
        raise OptionError(f"{dtype_meta.name}: zp is {zp}; expected None, this type is symmetric")
    axis = 0 if np.ndim(scale) == 1 and np.size(scale) > 1 else None
    own = None
    if dtype_meta.is_own:
        low, high = dtype_meta.qmin, dtype_meta.qmax
        fits = [np.min_scalar_type(low), np.min_scalar_type(high), np.dtype(dtype_meta.np_dtype_str)]
        own = (np.result_type(*fits), low, high)  # 129 does not fit int8
    return quantized(dtype_meta.name, scale, int(zp or 0), axis, own=own)


def quint8(scale: float, zero_point: int) -> QuantizedDType:
    """Unsigned 8-bit type with a zero point."""
    return quantized("quint8", scale, zero_point)


def qint8(scale: float) -> QuantizedDType:
    """Signed 8-bit type."""
    return quantized("qint8", scale)


def qint32(scale: float) -> QuantizedDType:
    """Signed 32-bit type of biases and accumulators."""
    return quantized("qint32", scale)


def quint4(scale: float, zero_point: int) -> QuantizedDType:
    """Unsigned 4-bit type with a zero point, stored in bytes."""
    return quantized("quint4", scale, zero_point)


def qint4(scale: float) -> QuantizedDType:
    """Signed 4-bit type, stored in bytes."""
    return quantized("qint4", scale)


def qint1(scale: float) -> QuantizedDType:
    """One bit, stored in bytes."""
    return quantized("qint1", scale)


def is_quantize(dtype: Any) -> bool:
    """True for a quantized dtype, also for a NumPy dtype with MegEngine's metadata."""
    return is_quantized(dtype)


def get_scale(dtype: Any) -> float | tuple[float, ...]:
    """Scale of a quantized dtype, or those along its axis. Raises DTypeError for others."""
    dtype = from_metadata(dtype) or dtype if isinstance(dtype, np.dtype) else dtype
    if not isinstance(dtype, QuantizedDType):
        raise DTypeError(f"get_scale: {dtype!r} is not a quantized dtype; expected one such as qint8(0.1)")
    return dtype.scale


def get_zero_point(dtype: Any) -> int:
    """Zero point of a quantized dtype. Raises DTypeError for others."""
    dtype = from_metadata(dtype) or dtype if isinstance(dtype, np.dtype) else dtype
    if not isinstance(dtype, QuantizedDType):
        raise DTypeError(f"get_zero_point: {dtype!r} is not a quantized dtype; expected one such as quint8(0.1, 3)")
    return dtype.zero_point


def get_dtype_bit(dtype_name: str) -> int:
    """Number of bits of a quantized type by name."""
    if dtype_name not in _BITS:
        raise OptionError(f"get_dtype_bit: unknown {dtype_name!r}; expected one of {sorted(_BITS)}")
    return _BITS[dtype_name]


def is_lowbit(dtype: Any) -> bool:
    """True for types of fewer than 8 bits."""
    return isinstance(dtype, LowBitDType) or (isinstance(dtype, QuantizedDType) and _BITS[dtype.name] < 8)
