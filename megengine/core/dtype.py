"""Data types: NumPy dtypes, bfloat16, and frozen quantized types that carry scale and zero point."""

from __future__ import annotations

import numbers
import operator
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np

from megengine.core.errors import DTypeError, ShapeError, brief, nearest
from megengine.core.text import counted

_SMALLEST_SCALE = np.finfo(np.float32).tiny  # 1 / s of a smaller one may be infinite
bfloat16 = np.dtype(ml_dtypes.bfloat16)

# name -> (storage, smallest, largest integer)
QUANTIZED = {
    "qint8": (np.dtype(np.int8), -128, 127),
    "qint8_narrow": (np.dtype(np.int8), -127, 127),
    "qint7": (np.dtype(np.int8), -64, 63),
    "quint8": (np.dtype(np.uint8), 0, 255),
    "qint16": (np.dtype(np.int16), -32768, 32767),
    "qint32": (np.dtype(np.int32), -(2**31), 2**31 - 1),
    "qint4": (np.dtype(np.int8), -8, 7),
    "quint4": (np.dtype(np.uint8), 0, 15),
    "qint1": (np.dtype(np.int8), 0, 1),
}
# MegEngine's name in the metadata of a NumPy dtype -> ours
MEGENGINE_NAMES = {
    "QuantizedS8": "qint8",
    "Quantized8Asymm": "quint8",
    "QuantizedS32": "qint32",
    "QuantizedS16": "qint16",
    "QuantizedS4": "qint4",
    "Quantized4Asymm": "quint4",
    "QuantizedS1": "qint1",
}
# and of each of ours; ranges that are narrower than the storage have no name of their own there
TO_MEGENGINE = {ours: theirs for theirs, ours in MEGENGINE_NAMES.items()} | dict.fromkeys(
    ("qint8_narrow", "qint7"), "QuantizedS8"
)


@dataclass(frozen=True, slots=True)
class QuantizedDType:
    """An integer type standing for real values: real = (stored - zero_point) * scale.

    `scale` is a float that float32 represents exactly, or a tuple of them along `axis` (per-channel).
    """

    name: str
    storage: np.dtype
    qmin: int
    qmax: int
    scale: float | tuple[float, ...]
    zero_point: int = 0
    axis: int | None = None

    @property
    def only_scale(self) -> float:
        """The scale of a type that has one for all elements. Raises DTypeError for one with scales along an axis."""
        if isinstance(self.scale, tuple):
            raise DTypeError(f"{self} has a scale per channel; expected one for all")
        return self.scale

    @property
    def bits(self) -> int:
        """Bits that tell all integers from smallest to largest apart."""
        return (self.qmax - self.qmin).bit_length()

    @property
    def stored_bits(self) -> int:
        """Bits of one integer in files and plans: those of few bits lie two to a byte."""
        return self.bits if self.bits <= 4 else 8 * self.itemsize

    @property
    def codes(self) -> int:
        """How many numbers the storage can hold: entries of a table of a function."""
        return 256**self.itemsize

    def integer_of(self, value: float) -> int:
        """The integer that stands for a real value, or the nearest one that there is."""
        return int(np.clip(np.rint(value / self.only_scale) + self.zero_point, self.qmin, self.qmax))

    @property
    def itemsize(self) -> int:
        """Bytes of one stored element."""
        return self.storage.itemsize

    @property
    def metadata(self) -> dict[str, Any]:
        """The description that MegEngine writes into the metadata of a NumPy dtype.

        Raises DTypeError for a type that MegEngine lacks.

        Example:
            >>> qint8(0.5).metadata
            {'mgb_dtype': {'name': 'QuantizedS8', 'scale': 0.5}}
        """
        if self.name not in TO_MEGENGINE:
            raise DTypeError(f"{self} has no name in MegEngine; expected one of {[*TO_MEGENGINE]}")
        described: dict[str, Any] = {"name": TO_MEGENGINE[self.name], "scale": self.only_scale}
        if "Asymm" in described["name"]:
            described["zero_point"] = self.zero_point
        return {"mgb_dtype": described}

    @property
    def numpy_dtype(self) -> np.dtype:
        """The NumPy dtype of the stored integers with this type's `metadata`.

        NOTE: under the name `dtype`, NumPy would find it and take this type for equal to its storage.
        """
        return np.dtype(self.storage, metadata=self.metadata)

    @property
    def kind(self) -> str:
        """NumPy's letter for the stored integers, "i" or "u"."""
        return self.storage.kind

    @property
    def type(self) -> type:
        """NumPy's class of one stored integer."""
        return self.storage.type

    def __str__(self) -> str:
        scale = f"{self.scale:.6g}" if not isinstance(self.scale, tuple) else f"<{counted(len(self.scale), 'scale')}>"
        return f"{self.name}({scale}, {self.zero_point})" if self.zero_point else f"{self.name}({scale})"


DType = np.dtype | QuantizedDType


def known_quantized(dtype: DType) -> QuantizedDType:
    """The dtype, which the caller has checked to be quantized."""
    assert isinstance(dtype, QuantizedDType), dtype
    return dtype


def quantized(
    name: str, scale: Any, zero_point: int = 0, axis: int | None = None, *, own: tuple[np.dtype, int, int] | None = None
) -> QuantizedDType:
    """A quantized type by name. `scale`: positive finite number, or a sequence of them when `axis` is given.

    `own` are storage, smallest and largest integer of a type that is not one of the known names.
    """
    if own is None and (not isinstance(name, str) or name not in QUANTIZED):
        raise DTypeError(
            f"unknown quantized dtype {brief(name)}; expected one of {[*QUANTIZED]}{nearest(name, QUANTIZED)}"
        )
    storage, qmin, qmax = own or QUANTIZED[name]
    try:
        values = np.asarray(scale, np.float32).reshape(-1)
        zero_point = operator.index(zero_point)
    except (TypeError, ValueError):
        raise DTypeError(
            f"{name}: scale is {brief(scale)}, zero point {brief(zero_point)}; expected numbers, the latter an integer"
        ) from None
    if not np.all(np.isfinite(values) & (values >= _SMALLEST_SCALE)):
        raise DTypeError(f"{name}: scale must be a positive, normal, finite float32, got {brief(scale)}")
    if axis is None and values.size != 1:
        raise DTypeError(f"{name}: {counted(values.size, 'scale')} need an axis")
    if axis is not None and (type(axis) is bool or not isinstance(axis, numbers.Integral) or not values.size):
        raise DTypeError(
            f"{name}: {counted(values.size, 'scale')} along axis {brief(axis)}; expected some, and an integer axis"
        )
    if not qmin <= zero_point <= qmax:
        raise DTypeError(f"{name}: zero point {zero_point} is outside [{qmin}, {qmax}]")
    exact = float(values[0]) if axis is None else tuple(float(v) for v in values)
    return QuantizedDType(name, storage, qmin, qmax, exact, int(zero_point), None if axis is None else int(axis))


def check_scales(op: str, dtype: QuantizedDType, shape: tuple[int, ...]) -> None:
    """Raise ShapeError where a type with scales along an axis has another number of them than the shape there."""
    axis = dtype.axis
    if axis is None or not isinstance(dtype.scale, tuple):
        return
    if not -len(shape) <= axis < len(shape) or len(dtype.scale) not in (1, shape[axis]):
        raise ShapeError(
            f"{op}: {dtype} has {counted(len(dtype.scale), 'scale')} along axis {axis}; the shape is {shape}"
        )


def qint8(scale: Any, zero_point: int = 0, axis: int | None = None) -> QuantizedDType:
    """Signed 8-bit quantized type."""
    return quantized("qint8", scale, zero_point, axis)


def quint8(scale: Any, zero_point: int = 0, axis: int | None = None) -> QuantizedDType:
    """Unsigned 8-bit quantized type."""
    return quantized("quint8", scale, zero_point, axis)


def qint32(scale: Any, axis: int | None = None) -> QuantizedDType:
    """Signed 32-bit quantized type: accumulators and biases."""
    return quantized("qint32", scale, 0, axis)


def from_metadata(dtype: np.dtype) -> QuantizedDType | None:
    """The quantized dtype that MegEngine wrote into an integer dtype's metadata, or None without metadata.

    Raises:
        DTypeError: the metadata names an unknown type, or no usable scale.
    """
    meta = (dtype.metadata or {}).get("mgb_dtype")
    if meta is None:
        return None
    stored = meta.get("name")
    name = MEGENGINE_NAMES.get(stored) if isinstance(stored, str) else None
    if name is None:
        raise DTypeError(f"quantized dtype {brief(stored)} is unknown; expected {list(MEGENGINE_NAMES)}")
    try:
        return quantized(name, float(meta["scale"]), int(meta.get("zero_point", 0)))
    except (KeyError, TypeError, ValueError) as exc:
        raise DTypeError(f"quantized dtype {name} has no usable scale or zero point: {exc}") from exc


_INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
_NAMES = ["bool", "float16", "float32", "float64", *_INTEGERS, "bfloat16"]
_CODE = re.compile(r"\?|[<=|]?(b1|[iu][1248]|f[248])")  # NumPy's short names, such as f4


@lru_cache(maxsize=256)
def _named(name: str) -> np.dtype:
    if name == "bfloat16":
        return bfloat16
    other = np.sctypeDict.get(name) or (name if _CODE.fullmatch(name) else None)
    if other is None or np.dtype(other).name not in _NAMES:
        raise DTypeError(f"unknown dtype {name!r}; expected one of {_NAMES}{nearest(name, _NAMES)}")
    return np.dtype(other)


def as_dtype(value: Any) -> DType:
    """A dtype from a name (also NumPy's, such as "half" and "f4"), a NumPy dtype or scalar type, or a quantized dtype.

    Raises DTypeError with the nearest name for anything else.
    """
    if isinstance(value, QuantizedDType):
        return value
    if isinstance(value, str):
        return _named(value)
    try:
        dtype = np.dtype(value)
        if dtype.kind not in "biufc" and (dtype.kind != "V" or dtype.type is np.void):  # "V" are those of ml_dtypes
            raise DTypeError(f"{brief(value)} is no dtype of numbers; expected one of {_NAMES} or a quantized type")
        return dtype if dtype.metadata is None else from_metadata(dtype) or dtype
    except TypeError as exc:
        if isinstance(exc, DTypeError):
            raise
        raise DTypeError(f"{value!r} is not a dtype; expected one of {_NAMES} or a quantized type") from exc


def storage_of(dtype: DType) -> np.dtype:
    """The NumPy dtype in which elements are stored."""
    return dtype.storage if isinstance(dtype, QuantizedDType) else dtype


def converted(array: np.ndarray, dtype: DType) -> np.ndarray | None:
    """The array in another dtype if that keeps every value; None if it does not, or the elements are no numbers.

    Floats are rounded to other floats, as long as finite values stay finite.

    Example:
        >>> converted(np.array([3, 4]), np.dtype(np.int32)), converted(np.array([0.5]), np.dtype(np.int32))
        (array([3, 4], dtype=int32), None)
    """
    result, kept = _cast(array, dtype)
    return result if np.all(kept) else None


def first_changed(array: np.ndarray, dtype: DType) -> Any:
    """The first value that a conversion to the dtype would change; None if there is none."""
    _, kept = _cast(array, dtype)
    at = np.argmin(np.broadcast_to(kept, array.shape))
    return None if np.all(kept) else array.reshape(-1)[at]


def _cast(array: np.ndarray, dtype: DType) -> tuple[np.ndarray, np.ndarray | bool]:
    """The array in the dtype, and a mask of the values that stay the same."""
    target = storage_of(dtype)
    if array.dtype == target:
        return array, True
    kinds = "iu" if isinstance(dtype, QuantizedDType) else "fiub"
    if array.dtype.kind not in kinds and (array.dtype != bfloat16 or kinds == "iu"):
        return array, False
    with np.errstate(all="ignore"):
        result = array.astype(target)
        if is_float(array.dtype) and is_float(target):
            return result, np.isfinite(result) | ~np.isfinite(array)
        return result, (result == array) & (result.astype(array.dtype) == array)


def is_quantized(dtype: Any) -> bool:
    """True for a quantized type."""
    return isinstance(dtype, QuantizedDType) or bool((getattr(dtype, "metadata", None) or {}).get("mgb_dtype"))


def is_differentiable(dtype: DType) -> bool:
    """True for dtypes whose values can have gradients: floats and complex numbers."""
    return isinstance(dtype, np.dtype) and (dtype.kind in "fc" or dtype == bfloat16)


def is_float(dtype: DType) -> bool:
    """True for float16, bfloat16, float32 and float64."""
    return isinstance(dtype, np.dtype) and (dtype.kind == "f" or dtype == bfloat16)
