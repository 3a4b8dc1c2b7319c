"""NumPy dtypes and arrays as pickles hold them, quantized dtypes of MegEngine included."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, bfloat16, from_metadata
from megengine.core.errors import DTypeError, FileFormatError, brief
from megengine.core.text import counted
from megengine.serialization.pickles import PLAIN, Blob, Builder, Global, Owning, Record

_CODES = frozenset(
    ["b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16", "bool", "int8", "uint8"]
)
_TEXT = re.compile("[US][1-9][0-9]{0,6}")  # elements of this many characters
_RAW = {"pybfloat16": bfloat16, "pyintb1": np.dtype(np.uint8), "pyintb2": np.dtype(np.uint8)}
_RAW["pyintb4"] = np.dtype(np.uint8)
_RAW_MODULE = "megengine.core._imperative_rt"

ARRAY_NAMES = frozenset({"numpy.ndarray", *(f"{_RAW_MODULE}.{name}" for name in _RAW)})


def quantized_of(dtype: np.dtype) -> QuantizedDType | None:
    """The quantized dtype that an integer dtype's `mgb_dtype` metadata describes, or None without metadata."""
    try:
        return from_metadata(dtype)
    except DTypeError as exc:
        raise FileFormatError(str(exc)) from exc


def with_metadata(dtype: QuantizedDType) -> np.dtype:
    """The integer dtype with MegEngine's metadata for a per-tensor quantized dtype."""
    if dtype.axis is not None:
        raise FileFormatError(f"{dtype}: MegEngine's files hold one scale per tensor; save it natively instead")
    return dtype.numpy_dtype


def _dtype(record: Record) -> np.dtype:
    code = record.args[0]
    if isinstance(code, Global):
        return _RAW[code.name]
    if not isinstance(code, str) or (code not in _CODES and not _TEXT.fullmatch(code)):
        raise FileFormatError(f"pickle: array elements of type {brief(code, 40)}; expected numbers or text")
    dtype = np.dtype(code)
    state = record.state
    if state is None:
        return dtype
    if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
        raise FileFormatError("pickle: the state of a dtype is malformed")
    if state[1] in "<>":
        dtype = dtype.newbyteorder(state[1])
    meta = state[8] if len(state) > 8 else None
    return dtype if not meta else np.dtype(dtype, metadata=_metadata(meta))


def _metadata(meta: Any) -> dict[str, Any]:
    if isinstance(meta, tuple):  # NumPy stores (metadata, datetime fields)
        meta = meta[0]
    inner = meta.get("mgb_dtype") if isinstance(meta, dict) else None
    if not isinstance(inner, dict):
        raise FileFormatError("pickle: a dtype has metadata that is not MegEngine's")
    return {"mgb_dtype": dict(inner)}


def array_from(raw: bytes | Blob, dtype: Any, shape: Any, *, fortran: bool = False) -> np.ndarray:
    """A writable array from its bytes, with memory of its own. Raises unless shape, dtype and length agree."""
    if not isinstance(dtype, np.dtype) or not isinstance(shape, tuple) or len(shape) > 32:
        raise FileFormatError("pickle: an array without dtype or shape")
    if not all(isinstance(n, int) and n >= 0 for n in shape):
        raise FileFormatError(f"pickle: an array of shape {brief(shape)}; expected non-negative sizes")
    if not isinstance(raw, (bytes, Blob)) or math.prod(shape) * dtype.itemsize != len(raw):
        got = counted(len(raw), "byte") if isinstance(raw, (bytes, Blob)) else f"a {type(raw).__name__}"
        raise FileFormatError(f"pickle: an array of shape {brief(shape)} and {dtype} has {got}")
    memory = raw.take() if isinstance(raw, Blob) else np.frombuffer(raw, np.uint8).copy()
    array = memory.view(dtype).reshape(shape, order="F" if fortran else "C")
    if dtype.kind == "U" and memory.size and memory.view(dtype.str[0] + "u4").max() > sys.maxunicode:
        raise FileFormatError("pickle: an array of text holds what is no character")
    native = array if dtype.isnative else array.astype(dtype.newbyteorder("="))
    return native if dtype.metadata is None else native.view(dtype)


def _array(record: Record) -> np.ndarray:
    version_and_state = record.state
    if not isinstance(version_and_state, tuple) or len(version_and_state) not in (4, 5):
        raise FileFormatError("pickle: an array without contents")
    shape, dtype, fortran, raw = version_and_state[-4:]
    if isinstance(raw, str):  # written by Python 2
        raw = raw.encode("latin1")
    return array_from(raw, dtype, shape, fortran=bool(fortran))


def _scalar(record: Record) -> Any:
    dtype, raw = record.args
    raw = raw.encode("latin1") if isinstance(raw, str) else raw
    return array_from(raw, dtype, ())[()]


def _from_buffer(record: Record) -> np.ndarray:
    raw, dtype, shape, order = record.args
    return array_from(raw, dtype, shape, fortran=order == "F")


ARRAYS: dict[str, Builder] = {**PLAIN, "numpy.dtype": _dtype}
for _package in ("numpy.core", "numpy._core"):  # renamed in NumPy 2
    ARRAYS[f"{_package}.multiarray._reconstruct"] = Owning(_array)
    ARRAYS[f"{_package}.multiarray.scalar"] = Owning(_scalar)
    ARRAYS[f"{_package}.numeric._frombuffer"] = Owning(_from_buffer)


def packed(array: np.ndarray) -> np.ndarray:
    """4-bit integers two to a byte, uint8 of one axis: the first of each pair in the low half.

    Example:
        >>> packed(np.array([1, -1, 2], np.int8)).tolist()
        [241, 2]
    """
    halves = np.append(array.reshape(-1), np.zeros(array.size % 2, array.dtype)).astype(np.uint8) & 15
    return halves[::2] | halves[1::2] << 4


def unpacked(pairs: np.ndarray, shape: tuple[int, ...], storage: np.dtype) -> np.ndarray:
    """The array of a shape that `packed` was given; int8 integers are signed."""
    halves = np.stack([pairs & 15, pairs >> 4], 1).reshape(-1)[: math.prod(shape)].reshape(shape)
    return ((halves ^ 8).astype(np.int8) - 8).astype(storage) if storage == np.int8 else halves.astype(storage)
