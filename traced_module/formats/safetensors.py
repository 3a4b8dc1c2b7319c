"""Arrays in the layout of safetensors (https://huggingface.co/docs/safetensors): a length, a JSON header, the values.

Values are written from the arrays and read into the arrays, without another copy in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, brief
from megengine.core.text import counted

# in the order of the values in a file, as in the library
_TYPES = {
    **{"U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8", "F32": "<f4", "U32": "<u4", "I32": "<i4"},
    **{"F16": "<f2", "U16": "<u2", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"},
}
_NAMES = {np.dtype(code): name for name, code in _TYPES.items()}
_RANKS = {name: rank for rank, name in enumerate(_TYPES)}
_MAX_HEADER = 100_000_000  # bytes, as in the library
_MAX_AXES = 64  # NumPy's


# ---------------------------------------------------------------- writing


def layout(arrays: Mapping[str, np.ndarray]) -> tuple[bytes, list[np.ndarray]]:
    """The bytes before the values, and the arrays in the order of the file.

    Raises:
        FileFormatError: the layout does not know the dtype of an array.
    """
    ranked = []
    for name, array in arrays.items():
        if array.dtype not in _NAMES:
            raise FileFormatError(f"{brief(name)} has elements of {array.dtype}, which safetensors files do not hold")
        ranked.append((_RANKS[_NAMES[array.dtype]], name, array))
    ranked.sort(key=lambda each: each[:2])
    header, end = {}, 0
    for _, name, array in ranked:
        start, end = end, end + array.nbytes
        header[name] = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": (start, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, [array for *_, array in ranked]


def bytes_of(array: np.ndarray) -> memoryview:
    """The values of an array in the byte order of the layout, without a copy if possible."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


# ---------------------------------------------------------------- reading


def read_arrays(fill: Callable[[memoryview], None], size: int) -> dict[str, np.ndarray]:
    """The arrays in the next `size` bytes, each in memory of its own; `fill` puts the next bytes into memory.

    Raises:
        FileFormatError: the bytes do not follow the layout.
    """

    def read(count: int) -> bytes:
        content = bytearray(count)
        fill(memoryview(content))
        return bytes(content)

    length = int.from_bytes(read(8), "little") if size >= 8 else size
    if length > min(_MAX_HEADER, size - 8):
        raise _damaged(f"a header of {counted(length, 'byte')} among {size}")
    header = json.loads(read(length))
    if not isinstance(header, dict):
        raise _damaged(f"its header is a {type(header).__name__}; expected an object")
    header.pop("__metadata__", None)
    places = sorted((_place(name, entry) for name, entry in header.items()), key=lambda place: place[:2])
    end = 0
    for start, stop, name, *_ in places:
        if start != end:
            raise _damaged(f"{brief(name)} begins at byte {start}; expected {end}")
        end = stop
    if end != size - 8 - length:
        raise _damaged(f"its arrays take {counted(end, 'byte')} of {size - 8 - length}")
    arrays = {}
    for *_, name, kind, shape in places:
        array = arrays[name] = np.empty(shape, _TYPES[kind])
        fill(array.reshape(-1).view(np.uint8).data)
    return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}


def _place(name: str, entry: Any) -> tuple[int, int, str, str, list[int]]:
    """Where the bytes of an array begin and end, its name, type and shape."""
    kind, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
    if kind not in _TYPES:
        raise _damaged(f"{brief(name)} has elements of {brief(kind)}")
    numbers = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in (start, stop, *shape))
    if not numbers or len(shape) > _MAX_AXES:
        raise _damaged(f"{brief(name)} has the shape {brief(shape)} at {brief([start, stop])}")
    if stop - start != math.prod(shape) * np.dtype(_TYPES[kind]).itemsize:
        raise _damaged(f"{brief(name)} of {kind} and the shape {brief(shape)} has {counted(stop - start, 'byte')}")
    return start, stop, name, kind, shape


def _damaged(text: str) -> FileFormatError:
    return FileFormatError(f"its weights are damaged: {text}")
