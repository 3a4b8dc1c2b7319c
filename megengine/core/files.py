"""Files that appear complete or not at all.

An unfinished file is a hidden file in the same folder. Its process holds a lock on it, and its name contains the
machine. So the next write into the folder removes the files that killed processes of this machine left, and no others.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from typing import IO, TYPE_CHECKING, cast

from megengine.core.errors import MegEngineError, MissingFileError, WriteError

if TYPE_CHECKING:
    from pathlib import Path  # imported where files are written: it takes long

_locks: dict[str, int] = {}  # temporary files of this process -> the open file that holds the lock
_STEM, _SUFFIX = 32, 16  # characters that a temporary file shows of a name and a suffix: names are bounded
_TRIES = 100


def cache_dir() -> Path:
    """Of downloads and tuned kernels: MEGENGINE_CACHE, else megengine below XDG_CACHE_HOME or ~/.cache."""
    from pathlib import Path

    if own := os.environ.get("MEGENGINE_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megengine"


def read_into(file: IO[bytes], memory: memoryview) -> bool:
    """Fill memory with the next bytes of a file; False if the file ends before."""
    return cast(BufferedIOBase, file).readinto(memory) == memory.nbytes  # which `IO`, the type of users' files, omits


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A new file that replaces `path` in one step when the body ends without an error; otherwise the old one stays.

    If `path` is a link, its target is replaced. Devices, pipes and files of `temporary_file` are written in place.

    Raises:
        MissingFileError: there is no such folder.
        WriteError: the system refuses to write.
    """
    from pathlib import Path

    target = Path(path)
    try:
        if _written_in_place(target):
            with target.open("wb") as file:
                yield file
            return
        with temporary_file(target) as temporary:
            with temporary.open("wb") as file:
                yield file
            put_in_place(temporary, target)
    except MegEngineError:
        raise
    except OSError as error:
        raise WriteError(f"{target}: cannot be written ({error.strerror or error})", error) from error


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """A new empty file in the folder of `path`, with the same suffix, that only its maker can read; removed at the end.

    If `path` is a link, the folder is that of its target. Files that killed processes left there are removed.

    Raises:
        MissingFileError: there is no such folder.
        OSError: the folder takes no file.
    """
    place = _place(path)
    if not place.parent.is_dir():
        raise MissingFileError(f"{path}: there is no folder {str(place.parent)!r} to write it to; make it first")
    mark = f"-mge{zlib.crc32(os.uname().nodename.encode()):08x}-"
    # files that processes of this machine and user left there when they were killed
    pattern = re.compile(rf"\..*{mark}[a-z0-9_]{{8}}(\.[^.]*)?", re.DOTALL)
    with suppress(OSError), os.scandir(place.parent) as entries:
        for entry in entries:
            if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                _remove_unlocked(entry.path)
    names: list[str] = []  # added before the files exist: an interrupt may come at any moment
    try:
        name = _locked_file(place, mark, names)
        yield type(path)(name)
    finally:
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name)
            if name in _locks:
                os.close(_locks.pop(name))


def put_in_place(temporary: Path, path: Path) -> None:
    """Replace `path` by a temporary file, which gets the permissions of `path` or those of new files."""
    lock = _locks.get(str(temporary))
    if lock is not None:
        os.fsync(lock)
    if _written_in_place(path):
        with temporary.open("rb") as source, path.open("wb") as file:
            while chunk := source.read(1 << 20):
                file.write(chunk)
        return
    place = _place(path)
    temporary.chmod(place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask())
    temporary.replace(place)


def _written_in_place(path: Path) -> bool:
    """True for a temporary file of this process, whose lock would be lost, and for devices and pipes."""
    if str(path) in _locks:
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _place(path: Path) -> Path:
    """The target of links; for devices and pipes, a path in the folder for temporary files."""
    if str(path) not in _locks and _written_in_place(path):
        import tempfile

        return type(path)(tempfile.gettempdir(), path.name)
    if not path.is_symlink():
        return path
    target = os.path.realpath(path)
    if os.path.islink(target):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return type(path)(target)


def _locked_file(place: Path, mark: str, names: list[str]) -> str:
    """The path of a new file, open and locked (`_locks`); every path that it tries is put into `names` first.

    Before the lock is held another process may remove the file as one that was left; then the next one is tried.
    """
    import fcntl

    suffix = place.suffix if len(place.suffix) <= _SUFFIX else ""
    for _ in range(_TRIES):
        name = os.path.abspath(place.parent / f".{place.stem[:_STEM]}{mark}{os.urandom(4).hex()}{suffix}")
        names.append(name)
        try:
            handle = _locks[name] = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            names.remove(name)  # it is of another process, or not there
            if isinstance(error, FileExistsError):
                continue
            raise
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        except OSError:  # no locks in this file system, so nobody removes it
            return name
        else:
            if os.fstat(handle).st_nlink:
                return name
    raise OSError(errno.EAGAIN, "other processes remove each new file", str(place.parent))


def _remove_unlocked(name: str) -> None:
    """Remove a file that no live process holds a lock on."""
    import fcntl

    with suppress(OSError):  # it is in use, or gone
        handle = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(handle)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(name, follow_symlinks=False).st_ino == status.st_ino:
                    os.unlink(name)
        finally:
            os.close(handle)


def _umask() -> int:
    """The permission mask of the process, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
