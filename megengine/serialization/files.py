"""`megengine.save` and `megengine.load`."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import IO, TYPE_CHECKING, Any

from megengine.core import late
from megengine.core.calls import shown
from megengine.core.collecting import collect_recent, collection_paused
from megengine.core.errors import ArgumentError, FileFormatError, MissingFileError, OptionError, nearest_file
from megengine.core.files import replacing
from megengine.dispatch.refusal import checked
from megengine.serialization.arrays import ARRAY_NAMES, ARRAYS
from megengine.serialization.mge_file import HEAD, refuse_mge
from megengine.serialization.objects import OBJECT_NAMES, OBJECTS, AllowedClasses
from megengine.serialization.pickles import Thaw, read_records
from megengine.serialization.standard import STANDARD
from megengine.serialization.torch_file import LEGACY_MAGIC
from megengine.serialization.writer import dumps
from megengine.tensor import Tensor

if TYPE_CHECKING:
    from pathlib import Path  # imported where files are opened, like zipfile: both imports are slow

Buffer = bytes | bytearray | memoryview
PathOrFile = str | os.PathLike[str] | IO[bytes]
_TABLE = {**ARRAYS, **STANDARD, **OBJECTS}
_NAMES = ARRAY_NAMES | OBJECT_NAMES


def write_atomically(path: str | os.PathLike[str], content: bytes | Iterable[Buffer]) -> None:
    """Replace a file by new content (buffers, one after the other) in one step: a crash or a full disk leaves the old
    file.
    """
    with replacing(path) as file:
        file.writelines([content] if isinstance(content, bytes) else content)


@checked
def save(obj: Any, f: PathOrFile, pickle_module: Any = pickle, pickle_protocol: int = 4) -> Any:
    """Write state dicts, checkpoints, tensors, modules or traced modules to a path or a file, as MegEngine 1.x does.

    A path is replaced in one step. Returns `f`. Raises DTypeError for objects that cannot be written, and then writes
    nothing. Files are written by the package itself, in protocol 4, whatever `pickle_protocol` is.

    >>> save({"epoch": 3, "state_dict": net.state_dict()}, "checkpoint.pkl")
    """
    from pathlib import Path

    if pickle_module is not pickle or pickle_protocol not in range(-1, pickle.HIGHEST_PROTOCOL + 1):
        raise OptionError("save: files are written by the package itself in protocol 4; leave out the pickle options")
    if isinstance(f, (str, os.PathLike)) and Path(f).suffix in SUFFIXES and isinstance(obj, tuple(WRITERS)):
        SUFFIXES[Path(f).suffix](obj, Path(f))
        return f
    if not isinstance(f, (str, os.PathLike)) and not hasattr(f, "write"):
        raise ArgumentError(f"save: f is {shown(f)}; expected a path, or a file opened in mode 'wb'")
    if isinstance(f, (str, os.PathLike)) and (not str(f) or Path(f).is_dir()):
        raise MissingFileError(f"save: {str(f)!r} is a folder; expected the path of a file")
    if isinstance(f, (str, os.PathLike)) and Path(f).suffix.lower() == ".onnx":
        raise OptionError(f"save: {str(f)!r}: megengine.convert.onnx.export writes .onnx files, of a traced module")
    writer = next((w for kind, w in WRITERS.items() if isinstance(obj, kind)), dumps)
    with collection_paused():
        content = writer(obj)
    if isinstance(f, (str, os.PathLike)):
        write_atomically(f, content)
    else:
        for part in content:
            f.write(part)
    return f


Location = str | Mapping[str, str] | Callable[[str], str] | None
_location: ContextVar[Location] = ContextVar("megengine_map_location", default=None)


class dmap:  # noqa: N801 (MegEngine's name)
    """In its `with` body, `load` without `map_location` uses this one."""

    def __init__(self, map_location: Location) -> None:
        self.map_location = map_location
        self._tokens: list[Token[Location]] = []

    def __enter__(self) -> dmap:
        self._tokens.append(_location.set(self.map_location))
        return self

    def __exit__(self, *_: object) -> None:
        _location.reset(self._tokens.pop())


def _opened(path: Path) -> IO[bytes]:
    try:
        if path.is_dir():
            raise MissingFileError(f"load: {str(path)!r} is a folder; expected the path of a file")
        return path.open("rb")
    except FileNotFoundError as exc:
        if isinstance(exc, MissingFileError):
            raise
        raise MissingFileError(f"load: there is no file {str(path)!r}{nearest_file(path)}") from None


@checked
def load(
    f: PathOrFile,
    map_location: Location = None,
    pickle_module: Any = pickle,
    *,
    allow: Sequence[type] = (),
    unsafe: bool = False,
) -> Any:
    """Read what `save` or MegEngine 1.x wrote: arrays, tensors, modules of this package, containers of them.

    The pickle is not run: only a fixed list of names is built, and modules of classes of yours that are
    imported already and have no `__setstate__` of their own. Other classes are built if you pass them,
    `load(f, allow=[Net])`. `unsafe=True` runs the pickle: it can do anything the file's author wished. Tensors come to
    the default device, or to `map_location` (a device, or a mapping or function of the name stored in the file).
    Raises FileFormatError for anything else, MissingFileError (a FileNotFoundError) where there is no such file.

    >>> net.load_state_dict(load("weights.pkl"))
    """
    from pathlib import Path

    if pickle_module is not pickle:
        raise OptionError("load: files are read by the package itself; leave out pickle_module")
    if isinstance(f, (str, os.PathLike)):
        if Path(f).suffix.lower() == ".onnx" and Path(f).is_file():
            raise OptionError(f"load: {str(f)!r}: megengine.convert.onnx.load reads .onnx files")
        with _opened(Path(f)) as file:
            try:
                return _loaded(file, map_location, allow, unsafe)
            except FileFormatError as exc:
                exc.add_note(f"while reading {f}")
                raise
    if not hasattr(f, "read"):
        raise ArgumentError(f"load: f is a {type(f).__name__}; expected a path, or a file opened in mode 'rb'")
    return _loaded(f, map_location, allow, unsafe)


def _loaded(f: IO[bytes], map_location: Location, allow: Sequence[type], unsafe: bool) -> Any:
    map_location = _location.get() if map_location is None else map_location
    if unsafe:
        return pickle.load(f)
    collect_recent()
    with collection_paused():
        content = f if isinstance(f, io.BufferedReader) and f.seekable() else io.BytesIO(f.read())
        at = content.tell()
        head = content.read(HEAD)
        if head.startswith(b"PK\x03\x04"):
            return _read_archive(content, allow)
        refuse_mge(head)
        content.seek(at)
        records = read_records(content)
        if records == LEGACY_MAGIC:
            raise FileFormatError("load: PyTorch's old format; read it with megengine.serialization.read_pth(path)")
        value = builder_of(allow, imported=True)(records)
        return value if map_location is None else _moved(value, map_location)


def _read_archive(file: Any, allow: Sequence[type]) -> Any:
    """A zip archive: one of our formats, or PyTorch's, for which there is a function of its own."""
    import zipfile

    late.ensure("megengine.traced_module.")
    try:
        names = set(zipfile.ZipFile(file).namelist())
    except (zipfile.BadZipFile, ValueError, OSError, NotImplementedError) as exc:
        raise FileFormatError(f"load: a zip archive, not a pickle, and damaged: {exc}") from exc
    reader = next((reader for name, reader in ARCHIVES.items() if name in names), None)
    if reader is None:
        raise FileFormatError("load: a zip archive, no pickle; for PyTorch's: megengine.serialization.read_pth(path)")
    file.seek(0)
    return reader(file, str(getattr(file, "name", "the file")), allow=allow)


# how objects that are not trees of values are written: class -> content of the file as buffers
WRITERS: dict[type, Callable[[Any], list[Buffer]]] = {}
# other formats of objects of these classes: suffix of a path -> writer(object, path)
SUFFIXES: dict[str, Callable[[Any, Path], None]] = {}
# and how they are read: name of an entry of a zip archive -> reader(file, path, allow=...)
ARCHIVES: dict[str, Callable[..., Any]] = {}


def builder_of(allow: Sequence[type] = (), *, imported: bool = False) -> Thaw:
    """A function that turns records of a pickle (`pickles.read_records`) into values, as `load` does.

    An object that two records share is one object in the results.
    """
    return Thaw(AllowedClasses(_TABLE, allow, imported=imported), names=_NAMES)


def _moved(value: Any, where: Any) -> Any:
    if isinstance(where, Mapping):
        where = where.get("xpux:0", where.get("xpux"))
    elif callable(where):
        where = where("xpux:0")
    if where is None:
        return value
    if isinstance(value, Tensor):
        return type(value)(value, device=where)
    if isinstance(value, dict):
        return type(value)((k, _moved(v, where)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(_moved(v, where) for v in value)
    if hasattr(value, "tensors"):
        for tensor in value.tensors():
            tensor._reset(type(tensor)(tensor, device=where))
    return value
