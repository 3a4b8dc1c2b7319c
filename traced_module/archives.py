"""Archives of our own formats: a zip of one JSON text and of arrays, written and read in one pass over them.

The arrays stand in the entry weights.safetensors, stored as they are: a header of names, types, shapes and places,
and the values one after the other (https://github.com/huggingface/safetensors). They go from memory to the file and
back without a copy in between.
"""

from __future__ import annotations

import json
import math
import os
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from megengine.core.errors import FileFormatError, brief

WEIGHTS = "weights.safetensors"
MAX_TEXT = 256 << 20  # bytes of the text after unpacking; weights are stored unpacked, so the file bounds them
MAX_RATIO = 200  # of the text unpacked to packed: text of graphs stays below a fifth of it
MAX_HEADER = 100 << 20  # bytes, as in the library of the format
# in the order in which that library writes arrays; those of one type by name
_TYPES = {
    **{"U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8", "F32": "<f4", "U32": "<u4", "I32": "<i4"},
    **{"F16": "<f2", "U16": "<u2", "I16": "<i2", "I8": "|i1", "U8": "|u1", "BOOL": "|b1"},
}
_NAMES = {text: name for name, text in _TYPES.items()}
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # of an entry: signature, lengths of its name and of an extra field


# ---------------------------------------------------------------- writing


def write_archive(path: Path, name: str, text: str, arrays: Mapping[str, np.ndarray], packing: int) -> None:
    """Write a text and arrays; an old file is replaced only when the new one is complete.

    Raises FileFormatError if the path cannot be written.
    """
    try:
        handle, made = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
                archive.writestr(_entry(name, _loadable(packing, text)), text)
                write_arrays(archive, arrays)
            os.chmod(made, 0o644)
            os.replace(made, path)
        finally:
            Path(made).unlink(missing_ok=True)
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written ({error.strerror})") from error
    except UnicodeEncodeError as error:
        raise FileFormatError(f"{path}: the name {brief(error.object)} holds no whole characters; rename it") from error


def _loadable(packing: int, text: str) -> int:
    """Stored where it would pack so well that reading took it for a bomb: names may be long, and graphs all alike."""
    data = text.encode()
    return packing if len(data) <= MAX_RATIO * len(zlib.compress(data)) // 2 + 4096 else zipfile.ZIP_STORED


def write_arrays(archive: zipfile.ZipFile, arrays: Mapping[str, np.ndarray]) -> None:
    """Add the entry of the arrays, whose types are those of the format."""
    plain = {name: np.ascontiguousarray(a, a.dtype.newbyteorder("<")).reshape(a.shape) for name, a in arrays.items()}
    order = {text: i for i, text in enumerate(_TYPES.values())}
    ordered = sorted(plain.items(), key=lambda item: (order[item[1].dtype.str], item[0]))
    header, end = {}, 0
    for name, array in ordered:
        place = [end, end := end + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype.str], "shape": list(array.shape), "data_offsets": place}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    entry = _entry(WEIGHTS, zipfile.ZIP_STORED)
    entry.file_size = 8 + len(text) + end
    with archive.open(entry, "w") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, array in ordered:
            file.write(array.data)


def _entry(name: str, compression: int) -> zipfile.ZipInfo:
    """An entry without a date: the same content gives the same bytes."""
    info = zipfile.ZipInfo(name)
    info.compress_type = compression
    return info


# ---------------------------------------------------------------- reading


def read_archive(file: IO[bytes], path: str, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The JSON and the arrays of what `write_archive` wrote. Raises FileFormatError for anything else."""
    try:
        with zipfile.ZipFile(file) as archive:
            _check_entries(archive, file.seek(0, 2), name)
            return json.loads(archive.read(name)), _read_arrays(file, archive.getinfo(WEIGHTS))
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
    except Exception as error:  # zip and JSON each have their own types
        raise FileFormatError(f"{path}: damaged or not a {Path(name).stem} file ({str(error)[:200]})") from error


def _check_entries(archive: zipfile.ZipFile, size: int, name: str) -> None:
    entries = {info.filename: info for info in archive.infolist()}
    if set(entries) != {name, WEIGHTS} or len(archive.infolist()) != 2:
        raise FileFormatError(f"holds {sorted(entries)[:5]}; expected {name} and {WEIGHTS}")
    text = entries[name]
    if text.file_size > min(MAX_TEXT, MAX_RATIO * min(text.compress_size, size) + 4096):
        raise FileFormatError(f"{name} unpacks to {text.file_size} bytes; refused")
    weights = entries[WEIGHTS]
    if weights.compress_type != zipfile.ZIP_STORED or weights.file_size > size or weights.flag_bits & 1:
        raise FileFormatError(f"{WEIGHTS} is packed; expected it stored, so that its size is known")


def _read_arrays(file: IO[bytes], entry: zipfile.ZipInfo) -> dict[str, np.ndarray]:
    """The arrays, each in memory of its own; never more memory than the file has bytes."""
    file.seek(entry.header_offset)
    signature, *lengths = _LOCAL_HEADER.unpack(_read(file, _LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise FileFormatError(f"{WEIGHTS} is not where the archive says")
    file.seek(sum(lengths), os.SEEK_CUR)
    head = _read(file, 8)
    length = int.from_bytes(head, "little")
    if length > min(MAX_HEADER, entry.file_size - 8):
        raise FileFormatError(f"{WEIGHTS} has a header of {length} bytes; refused")
    text = _read(file, length)
    check = zlib.crc32(text, zlib.crc32(head))
    arrays = {}
    for name, dtype, shape in _arrangement(json.loads(text), entry.file_size - 8 - length):
        array = np.empty(shape, dtype)
        if array.size:
            view = memoryview(array.reshape(-1)).cast("B")
            _fill(file, view)
            check = zlib.crc32(view, check)
        arrays[name] = array.astype(dtype.newbyteorder("="), copy=False)
    if check != entry.CRC:
        raise FileFormatError(f"the check sum of {WEIGHTS} is wrong")
    return arrays


def _arrangement(header: Any, size: int) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    """Names, types and shapes in the order of the values, which must fill `size` bytes one after the other."""
    found, end = [], 0
    entries = [(name, item) for name, item in header.items() if name != "__metadata__"]
    for name, item in sorted(entries, key=lambda entry: entry[1]["data_offsets"]):
        shape, places = tuple(item["shape"]), item["data_offsets"]
        if item["dtype"] not in _TYPES or not all(type(n) is int and n >= 0 for n in (*shape, *places)):
            raise FileFormatError(f"{WEIGHTS}: {brief(name)} is described by {brief(item)}")
        dtype = np.dtype(_TYPES[item["dtype"]])
        if places != [end, end + math.prod(shape) * dtype.itemsize]:
            raise FileFormatError(f"{WEIGHTS}: {brief(name)} lies at {brief(places)}; expected it at {end}")
        end = places[1]
        found.append((name, dtype, shape))
    if end != size:
        raise FileFormatError(f"{WEIGHTS} has {size} bytes of values; its header describes {end}")
    return found


def _read(file: IO[bytes], count: int) -> bytes:
    found = file.read(count)
    if len(found) != count:
        raise FileFormatError(f"{WEIGHTS} ends early")
    return found


def _fill(file: Any, view: memoryview) -> None:
    while view:
        count = file.readinto(view)
        if not count:
            raise FileFormatError(f"{WEIGHTS} ends early")
        view = view[count:]
