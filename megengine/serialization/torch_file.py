"""PyTorch `.pth` / `.pt` files read without PyTorch: the zip format (1.6 and later) and the older stream of pickles.

Only state: tensors, numbers, text and containers of them. Nothing in the file is run, and sizes are checked against the
file before memory is taken.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.core.dtype import bfloat16
from megengine.core.errors import FileFormatError, brief
from megengine.core.text import counted
from megengine.serialization.pickles import PLAIN, Builder, Global, Record, Thaw, read_records

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_MAX_PICKLE = 64 << 20
_BIG_ENDIAN = "torch file: written on a big-endian machine; save it again on a little-endian one"
_STORAGES = {
    "DoubleStorage": np.dtype(np.float64),
    "FloatStorage": np.dtype(np.float32),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": bfloat16,
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}
_STORAGE_NAMES = frozenset(f"torch.{name}" for name in _STORAGES)


@dataclass(frozen=True, slots=True)
class _Storage:
    """A flat array, or a part of it (`view`: offset and count), whose bytes are read after the pickle."""

    dtype: np.dtype
    key: str
    count: int
    view: tuple[int, int] | None = None


class _Tensor:
    """The part of a storage that a tensor shows."""

    def __init__(self, storage: Any, offset: Any, shape: Any, strides: Any) -> None:
        if not isinstance(storage, _Storage):
            raise FileFormatError("torch file: a tensor without storage")
        numbers = (offset, *shape, *strides) if isinstance(shape, tuple) and isinstance(strides, tuple) else (-1,)
        if len(numbers) % 2 == 0 or len(numbers) > 65 or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise FileFormatError(
                f"torch file: a tensor of offset {brief(offset)}, shape {brief(shape)}, strides "
                f"{brief(strides)}; expected non-negative integers, one stride per axis"
            )
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else -1
        if last >= storage.count:
            raise FileFormatError(
                f"torch file: shape {brief(shape)} reaches element {last} of a storage of {storage.count}"
            )
        self.storage, self.offset, self.shape, self.strides = storage, offset, shape, strides

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.storage.dtype.itemsize

    def array(self, flat: np.ndarray) -> np.ndarray:
        if 0 in self.shape:
            return np.zeros(self.shape, self.storage.dtype)
        steps = tuple(s * flat.itemsize for s in self.strides)
        view = np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, steps)
        return np.array(view, order="C")


def _storage(reference: Any) -> _Storage:
    if not isinstance(reference, tuple) or len(reference) not in (5, 6) or reference[0] != "storage":
        raise FileFormatError("torch file: a reference that is not to a storage")
    kind, key, _, count = reference[1:5]
    if not isinstance(kind, Global) or str(kind) not in _STORAGE_NAMES:
        raise FileFormatError(f"torch file: elements of {brief(kind)}; expected one of {sorted(_STORAGES)}")
    if not isinstance(key, str) or not isinstance(count, int) or count < 0:
        raise FileFormatError("torch file: a storage without key or size")
    view = None
    if len(reference) == 6 and reference[5] is not None:
        view_key, offset, size = reference[5]
        if not (isinstance(offset, int) and isinstance(size, int) and 0 <= offset <= offset + size <= count):
            raise FileFormatError(f"torch file: storage view {brief(view_key, 30)} lies outside its storage")
        view = (offset, size)
    return _Storage(_STORAGES[kind.name], key, count if view is None else view[1], view)


def _rebuild(record: Record) -> _Tensor:
    storage, offset, shape, strides = record.args[:4]
    return _Tensor(storage, offset, shape, strides)


def _parameter(record: Record) -> _Tensor:
    tensor = record.args[0]
    if not isinstance(tensor, _Tensor):
        raise FileFormatError("torch file: a parameter without a tensor")
    return tensor


_TABLE: dict[str, Builder] = {
    **PLAIN,
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_parameter": _parameter,
    "torch.Size": lambda r: tuple(r.args[0]),
}


def _resolve(value: Any, load: Callable[[_Storage], np.ndarray], size: int) -> Any:
    """Tensors of a tree of values replaced by arrays; together they take at most about four times the file's size."""
    budget, used, done = 4 * size + (1 << 20), 0, {}

    def visit(item: Any) -> Any:
        nonlocal used
        if isinstance(item, _Tensor):
            if id(item) not in done:
                used += item.nbytes
                if used > budget:
                    raise FileFormatError(
                        f"torch file: its tensors take more than {counted(budget, 'byte')}, "
                        "over four times the file itself"
                    )
                done[id(item)] = item.array(load(item.storage))
            return done[id(item)]
        if isinstance(item, dict):
            return type(item)((k, visit(v)) for k, v in item.items())
        if isinstance(item, (list, tuple)):
            return type(item)(visit(v) for v in item)
        return None if isinstance(item, (Global, _Storage)) else item

    return visit(value)


def _read_zip(file: Any, size: int) -> Any:
    import zipfile  # takes long to import, as pathlib does

    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as exc:
        raise FileFormatError(f"torch file: a damaged zip archive: {exc}") from exc
    entries = {info.filename: info for info in archive.infolist()}
    packed = [i.filename for i in entries.values() if i.compress_type != zipfile.ZIP_STORED or i.flag_bits & 1]
    if packed:
        raise FileFormatError(f"torch file: entry {packed[0][:100]!r} is compressed; torch.save stores without")
    if sum(info.file_size for info in entries.values()) > size:
        raise FileFormatError("torch file: its entries are together larger than the file")
    roots = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1:
        raise FileFormatError(f"torch file: {counted(len(roots), 'entry')} named data.pkl; expected one")

    def read(name: str, limit: int) -> bytes:
        info = entries.get(roots[0] + name)
        if info is None or info.file_size > limit:
            problem = "missing" if info is None else "too large"
            raise FileFormatError(f"torch file: entry {name[:100]!r} is {problem}")
        try:
            return archive.read(info)
        except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError) as exc:
            raise FileFormatError(f"torch file: entry {name[:100]!r} is damaged: {exc}") from exc

    if roots[0] + "byteorder" in entries and read("byteorder", 16) != b"little":
        raise FileFormatError(_BIG_ENDIAN)
    loaded: dict[str, bytes] = {}

    def load(storage: _Storage) -> np.ndarray:
        raw = loaded.get(storage.key)
        if raw is None:
            raw = loaded[storage.key] = read(f"data/{storage.key}", size)
        if len(raw) < storage.count * storage.dtype.itemsize:
            raise FileFormatError(
                f"torch file: storage {storage.key[:40]!r} has {counted(len(raw), 'byte')}; "
                f"expected {counted(storage.count, 'element')} of {storage.dtype}"
            )
        return np.frombuffer(raw, storage.dtype, storage.count)

    tree = Thaw(_TABLE, names=_STORAGE_NAMES, persistent=_storage)
    return _resolve(tree(read_records(io.BytesIO(read("data.pkl", _MAX_PICKLE)))), load, size)


def _read_legacy(file: Any, size: int) -> Any:
    if read_records(file) != LEGACY_MAGIC:
        raise FileFormatError("not a torch file: neither a zip archive nor the older format's magic number")
    version = read_records(file)
    if version != _LEGACY_VERSION:
        raise FileFormatError(f"torch file: older format of version {brief(version, 20)}; expected {_LEGACY_VERSION}")
    system = Thaw(_TABLE)(read_records(file))
    if isinstance(system, dict) and system.get("little_endian") is False:
        raise FileFormatError(_BIG_ENDIAN)
    kinds: dict[str, _Storage] = {}

    def storage(reference: Any) -> _Storage:
        part = _storage(reference)
        whole = _Storage(part.dtype, part.key, reference[4])
        if kinds.setdefault(part.key, whole) != whole:
            raise FileFormatError(f"torch file: storage {part.key[:40]!r} is described twice, differently")
        return part

    value = Thaw(_TABLE, names=_STORAGE_NAMES, persistent=storage)(read_records(file))
    keys = read_records(file)
    if not isinstance(keys, list) or not all(isinstance(key, (str, int)) for key in keys):
        raise FileFormatError("torch file: it has no list of storages")
    names = list(map(str, keys))
    if len(set(names)) != len(names) or set(names) != kinds.keys():
        raise FileFormatError("torch file: its list of storages does not fit its tensors")
    flats = {key: _legacy_storage(file, kinds[key], size) for key in names}

    def load(part: _Storage) -> np.ndarray:
        offset, count = part.view or (0, part.count)
        return flats[part.key][offset : offset + count]

    return _resolve(value, load, size)


def _legacy_storage(file: Any, storage: _Storage, size: int) -> np.ndarray:
    head = file.read(8)
    count = int.from_bytes(head, "little", signed=True)
    need = count * storage.dtype.itemsize
    if len(head) < 8 or count != storage.count or need > size - file.tell():
        raise FileFormatError(
            f"torch file: storage {storage.key[:40]!r} should hold "
            f"{counted(storage.count, 'element')} of {storage.dtype}; the file is truncated or damaged"
        )
    return np.frombuffer(file.read(need), storage.dtype)


def read_pth(path: str | os.PathLike[str]) -> Any:
    """The contents of a `.pth` / `.pt` file, with NumPy arrays in place of tensors (bfloat16 from ml_dtypes).

    A state dict comes back as an OrderedDict name -> array, in the file's order. Code and classes in the file are
    refused, never run. Raises FileFormatError, which names the fault, for damaged and other files.

    >>> read_pth("mobilenet_v2.pth")["classifier.1.bias"].shape
    (1000,)
    """
    from pathlib import Path

    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        try:
            head = file.read(4)
            file.seek(0)
            return _read_zip(file, size) if head == b"PK\x03\x04" else _read_legacy(file, size)
        except FileFormatError as exc:
            exc.add_note(f"while reading {path}")
            raise
