"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from megengine.core.errors import MissingFileError

if TYPE_CHECKING:
    from pathlib import Path  # imported where files are written: it takes long


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` in one step when the body ends well: else the old one stays.

    Raises:
        MissingFileError: there is no such folder.
        OSError: the system refuses to write.
    """
    from pathlib import Path

    path = Path(path)
    if not path.parent.is_dir():
        raise MissingFileError(f"{path}: there is no folder {str(path.parent)!r} to write it to; make it first")
    temporary = file_beside(path)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def file_beside(path: Path) -> Path:
    """A new empty file in the folder of `path`, with the same suffix, that only its maker can read."""
    import tempfile

    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    return type(path)(name)


def put_in_place(temporary: Path, path: Path) -> None:
    """Let a file take the place of `path`: with its rights, or with those that new files have."""
    temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
    temporary.replace(path)


def _umask() -> int:
    """The process's mask of rights, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
