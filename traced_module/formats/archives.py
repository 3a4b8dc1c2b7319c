"""Archives of our own formats: a zip of one JSON text and of arrays, which safetensors writes and reads."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from megengine.core.errors import FileFormatError, brief
from megengine.core.files import replacing

WEIGHTS = "weights.safetensors"
MAX_TEXT = 256 << 20  # bytes of the text after unpacking; weights are stored unpacked, so the file bounds them
MAX_RATIO = 200  # of the text unpacked to packed: text of graphs stays below a fifth of it


# ---------------------------------------------------------------- writing


def write_archive(path: Path, name: str, text: str, arrays: Mapping[str, np.ndarray], packing: int) -> None:
    """Write a text and arrays; an old file is replaced only when the new one is complete.

    Raises FileFormatError if the path cannot be written.
    """
    from safetensors.numpy import save as pack

    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr(_entry(name, _loadable(packing, text)), text)
            archive.writestr(_entry(WEIGHTS, zipfile.ZIP_STORED), pack(dict(arrays)))
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be written ({error.strerror})") from error
    except UnicodeEncodeError as error:
        raise FileFormatError(f"{path}: the name {brief(error.object)} holds no whole characters; rename it") from error


def _loadable(packing: int, text: str) -> int:
    """Stored where it would pack so well that reading took it for a bomb: names may be long, and graphs all alike."""
    if packing == zipfile.ZIP_STORED:
        return packing
    data = text.encode()
    return packing if len(data) <= MAX_RATIO * len(zlib.compress(data)) // 2 + 4096 else zipfile.ZIP_STORED


def _entry(name: str, compression: int) -> zipfile.ZipInfo:
    """An entry without a date: the same content gives the same bytes."""
    info = zipfile.ZipInfo(name)
    info.compress_type = compression
    return info


# ---------------------------------------------------------------- reading


def read_archive(file: IO[bytes], path: str, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The JSON and the arrays of what `write_archive` wrote. Raises FileFormatError for anything else."""
    from safetensors.numpy import load as unpack

    try:
        with zipfile.ZipFile(file) as archive:
            _check_entries(archive, file.seek(0, 2), name)
            return json.loads(archive.read(name)), unpack(archive.read(WEIGHTS))
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
    except Exception as error:  # zip, JSON and safetensors each have their own types
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
