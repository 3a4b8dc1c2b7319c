"""Archives of the native formats: a zip of one JSON text and of arrays in the layout of safetensors."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from megengine.core.errors import FileFormatError, brief
from megengine.core.files import read_into, replacing
from megengine.core.text import counted
from megengine.serialization.mge_file import HEAD, refuse_mge
from megengine.traced_module.formats.safetensors import bytes_of, layout, read_arrays

WEIGHTS = "weights.safetensors"
MAX_TEXT = 256 << 20  # bytes of the unpacked text; weights are stored unpacked, so the size of the file bounds them
_CHUNK = 1 << 18  # bytes that are read or written at once: they stay in the cache while they are summed and copied
MAX_RATIO = 200  # of the sizes of unpacked and packed text: for graphs it is below a fifth of this


# ---------------------------------------------------------------- writing


def write_archive(path: Path, name: str, text: str, arrays: Mapping[str, np.ndarray], packing: int) -> None:
    """Write a text and arrays; an old file is replaced only when the new one is complete.

    Raises WriteError if the path cannot be written, FileFormatError if an array has elements of an unknown kind.
    """
    try:
        with replacing(path) as file, zipfile.ZipFile(file, "w") as archive:
            data = text.encode()
            # reading would refuse the ratio of long or repeated names
            if packing != zipfile.ZIP_STORED and len(data) > MAX_RATIO * len(zlib.compress(data)) // 2 + 4096:
                packing = zipfile.ZIP_STORED
            archive.writestr(_entry(name, packing), data)
            _write_arrays(archive, arrays)
    except UnicodeEncodeError as error:
        raise FileFormatError(f"{path}: the name {brief(error.object)} is not valid Unicode; rename it") from error


def _write_arrays(archive: zipfile.ZipFile, arrays: Mapping[str, np.ndarray]) -> None:
    head, ordered = layout(arrays)
    info = _entry(WEIGHTS, zipfile.ZIP_STORED)
    info.file_size = len(head) + sum(array.nbytes for array in ordered)  # tells whether the entry is a large one
    with archive.open(info, "w") as entry:
        entry.write(head)
        for array in ordered:
            for chunk in _chunks(bytes_of(array)):
                entry.write(chunk)


def _chunks(memory: memoryview) -> Iterator[memoryview]:
    for at in range(0, len(memory), _CHUNK):
        yield memory[at : at + _CHUNK]


def _entry(name: str, compression: int) -> zipfile.ZipInfo:
    """An entry without a date: the same content gives the same bytes."""
    info = zipfile.ZipInfo(name)
    info.compress_type = compression
    return info


# ---------------------------------------------------------------- reading


def read_archive(file: IO[bytes], path: str, name: str) -> tuple[Any, dict[str, np.ndarray]]:
    """The JSON and the arrays of a file of `write_archive`. Raises FileFormatError for any other file."""
    try:
        _check_head(file.read(HEAD))
        with zipfile.ZipFile(file) as archive:
            _check_entries(archive, file.seek(0, 2), name)
            described = json.loads(archive.read(name))
            entry = _Stored(file, archive)
            arrays = read_arrays(entry.fill, entry.size)
            entry.check()
            return described, arrays
    except FileFormatError as error:
        raise FileFormatError(f"{path}: {error}") from None
    except Exception as error:  # zip and JSON raise types of their own, and a wrong header raises anything
        if not file.seek(0, 2):
            raise FileFormatError(f"{path}: the file is empty; write or copy it again") from error
        raise FileFormatError(f"{path}: damaged or not a {Path(name).stem} file ({str(error)[:200]})") from error


def _check_head(head: bytes) -> None:
    """Say what reads files of other formats."""
    refuse_mge(head)
    if head[:1] == pickle.PROTO:
        raise FileFormatError("a pickle, as megengine.save writes .tm files; read it with megengine.load")


def _check_entries(archive: zipfile.ZipFile, size: int, name: str) -> None:
    entries = {info.filename: info for info in archive.infolist()}
    if set(entries) != {name, WEIGHTS} or len(archive.infolist()) != 2:
        raise FileFormatError(f"holds {sorted(entries)[:5]}; expected {name} and {WEIGHTS}")
    text = entries[name]
    if text.file_size > min(MAX_TEXT, MAX_RATIO * min(text.compress_size, size) + 4096):
        raise FileFormatError(f"{name} unpacks to {counted(text.file_size, 'byte')}; refused")
    weights = entries[WEIGHTS]
    packed = weights.compress_type != zipfile.ZIP_STORED or weights.compress_size != weights.file_size
    if packed or weights.file_size > size or weights.flag_bits & 1:
        raise FileFormatError(f"{WEIGHTS} is packed; expected it stored, so that its size is known")


class _Stored:
    """The stored bytes of the arrays of an archive."""

    def __init__(self, file: IO[bytes], archive: zipfile.ZipFile) -> None:
        self.file, info = file, archive.getinfo(WEIGHTS)
        self.size, self.expected, self.sum = info.file_size, info.CRC, 0
        with archive.open(info):  # it compares the header of the entry with the list of entries
            file.seek(info.header_offset)
        name, extra = struct.unpack("<26x2H", file.read(30))
        file.seek(name + extra, 1)

    def fill(self, memory: memoryview) -> None:
        for chunk in _chunks(memory):
            if not read_into(self.file, chunk):
                raise FileFormatError(f"{WEIGHTS} is damaged: the file ends in the middle of it")
            self.sum = zlib.crc32(chunk, self.sum)

    def check(self) -> None:
        if self.sum != self.expected:
            raise FileFormatError(f"{WEIGHTS} is damaged: its CRC is {self.sum:#x}; the file states {self.expected:#x}")
