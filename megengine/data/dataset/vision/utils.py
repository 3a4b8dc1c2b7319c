"""Files of published data sets: pictures, archives, downloads."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, MissingFileError
from megengine.utils.http_download import download_from_url

__all__ = ["calculate_md5", "is_img", "load_raw_data_from_url", "read_json", "read_picture", "untar", "untargz"]

_PICTURES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_BLOCK = 1 << 20


def is_img(filename: str) -> bool:
    """Whether the name of a file is one of a picture."""
    return filename.lower().endswith(_PICTURES)


def read_picture(path: str | os.PathLike[str], kind: str) -> np.ndarray:
    """A picture [H,W,3] of bytes, in the order blue, green, red.

    Raises MissingFileError, and FileFormatError for what Pillow cannot read, with the `kind` of data set.
    """
    return np.ascontiguousarray(_pixels(path, kind, "RGB")[:, :, ::-1])


def read_numbers(path: str | os.PathLike[str], kind: str) -> np.ndarray:
    """The bytes [H,W] of a picture of one channel, such as a mask. Raises as `read_picture`."""
    return _pixels(path, kind, "L")


def _pixels(path: str | os.PathLike[str], kind: str, mode: str) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as picture:
            return np.asarray(ImageOps.exif_transpose(picture).convert(mode))
    except FileNotFoundError:
        raise MissingFileError(f"{kind}: there is no file {os.fspath(path)!r}") from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{kind}: {os.fspath(path)} is no picture that can be read: {error}") from None


def read_json(path: str | os.PathLike[str], kind: str) -> dict[str, Any]:
    """The object of a JSON file. Raises MissingFileError and FileFormatError, with the `kind` of data set."""
    try:
        found = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise MissingFileError(f"{kind}: there is no file {os.fspath(path)!r}") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{kind}: {os.fspath(path)} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FileFormatError(f"{kind}: {os.fspath(path)} holds a {type(found).__name__}; expected an object")
    return found


def default_root(name: str) -> str:
    """Where a published data set lies if no folder is given."""
    return str(Path.home() / ".cache" / "megengine" / name)


def folder_of(kind: str, root: str | os.PathLike[str] | None, *, download: bool) -> Path:
    """The folder of a data set, made where it may be downloaded to. Raises MissingFileError if there is none."""
    folder = Path(default_root(kind) if root is None else os.path.expanduser(root))
    if download:
        folder.mkdir(parents=True, exist_ok=True)
    elif not folder.is_dir():
        raise MissingFileError(f"{kind}: there is no folder {str(folder)!r}; give root, or download=True")
    return folder


def calculate_md5(filename: str | os.PathLike[str]) -> str:
    """The MD5 sum of a file in hexadecimal digits, by which publishers name their files."""
    found = hashlib.md5(usedforsecurity=False)
    with Path(filename).open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def load_raw_data_from_url(url: str, filename: str, target_md5: str, raw_data_dir: str | os.PathLike[str]) -> None:
    """Download a file into a folder unless it is there.

    Raises HTTPDownloadError, and FileFormatError if what came is not the published file.
    """
    path = Path(raw_data_dir) / filename
    if path.is_file() and calculate_md5(path) == target_md5:
        return
    download_from_url(url, path)
    if (found := calculate_md5(path)) != target_md5:
        raise FileFormatError(f"{filename}: {url} gave a file with MD5 sum {found}; expected {target_md5}")


def untar(path: str | os.PathLike[str], to: str | os.PathLike[str] | None = None, remove: bool = False) -> None:
    """Unpack an archive into a folder, by default that of the archive; nothing is written outside of it.

    Raises FileFormatError for what is no archive, or names files elsewhere.
    """
    try:
        with tarfile.open(path) as archive:
            archive.extractall(Path(path).parent if to is None else to, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise FileFormatError(f"untar: {os.fspath(path)}: {error}") from None
    if remove:
        Path(path).unlink()


untargz = untar
