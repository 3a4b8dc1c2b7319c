"""MNIST: 70,000 digits of 28 x 28 grey pixels (LeCun, Cortes, Burges 1998), in files of the format IDX."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.errors import FileFormatError, MissingFileError
from megengine.core.text import counted
from megengine.data.dataset.vision.meta_vision import VisionDataset
from megengine.data.dataset.vision.utils import folder_of, load_raw_data_from_url
from megengine.dispatch.refusal import constructor

__all__ = ["MNIST"]

_LABELS, _IMAGES = 2049, 2051  # what a file begins with: bytes in one and in three dimensions
_MOST = 1 << 31  # bytes in a file


class MNIST(VisionDataset):
    """Digits: an item is a picture [28,28,1] of bytes and its class, an int32 from 0 to 9.

    The four files as they are published are read from `root` (by default ~/.cache/megengine/MNIST), with `download`
    from the network where they are not there.

    Raises:
        MissingFileError: files are not there, and download is off.
        FileFormatError: a file is damaged.
        HTTPDownloadError: a download fails.
    """

    url_path = "https://ossci-datasets.s3.amazonaws.com/mnist/"
    raw_file_name = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    raw_file_md5 = (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )

    @constructor
    def __init__(self, root: str | os.PathLike[str] | None = None, train: bool = True, download: bool = True) -> None:
        folder = folder_of("MNIST", root, download=download)
        super().__init__(str(folder), order=("image", "image_category"))
        if download:
            self.download()
        self._meta_data: dict[str, Any] = {}
        self.arrays = self.process(train)

    @property
    def meta(self) -> dict[str, Any]:
        """What the heads of the two files say, by "images" and "labels"."""
        return self._meta_data

    def download(self) -> None:
        """Fetch the files that are not there."""
        for name, md5 in zip(self.raw_file_name, self.raw_file_md5, strict=True):
            load_raw_data_from_url(self.url_path + name, name, md5, str(self.root))

    def process(self, train: bool) -> tuple[list[np.ndarray], np.ndarray]:
        """Read the pictures and classes for training, or for testing."""
        images, labels = self.raw_file_name[:2] if train else self.raw_file_name[2:]
        self._meta_data["images"], pictures = parse_idx3(Path(str(self.root), images))
        self._meta_data["labels"], classes = parse_idx1(Path(str(self.root), labels))
        if len(pictures) != len(classes):
            count = counted(len(pictures), "picture")
            raise FileFormatError(f"MNIST: {images} has {count}, and {labels} has {counted(len(classes), 'class')}")
        return pictures, classes.astype(np.int32)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


def parse_idx3(idx3_file: str | os.PathLike[str]) -> tuple[dict[str, int], list[np.ndarray]]:
    """The head of a compressed file of pictures, and the pictures [H,W,1] of bytes."""
    sizes, values = _read(idx3_file, _IMAGES, 3)
    return dict(zip(("magic", "imgs", "height", "width"), (_IMAGES, *sizes), strict=True)), list(values[..., None])


def parse_idx1(idx1_file: str | os.PathLike[str]) -> tuple[dict[str, int], np.ndarray]:
    """The head of a compressed file of classes, and the classes, of int64."""
    sizes, values = _read(idx1_file, _LABELS, 1)
    return dict(zip(("magic", "imgs"), (_LABELS, *sizes), strict=True)), values.astype(np.int64)


def _read(path: str | os.PathLike[str], magic: int, dims: int) -> tuple[list[int], np.ndarray]:
    try:
        with gzip.open(path, "rb") as file:
            head = np.frombuffer(file.read(4 * (1 + dims)), ">u4")
            sizes = [int(n) for n in head[1:]]
            if len(head) != 1 + dims or head[0] != magic or math.prod(sizes) > _MOST:
                raise FileFormatError(
                    f"MNIST: {os.fspath(path)} begins with {head.tolist()}; expected {magic} and {dims} sizes, of "
                    f"{_MOST} bytes together at most"
                )
            body = file.read(math.prod(sizes) + 1)
    except FileNotFoundError:
        raise MissingFileError(f"MNIST: there is no file {os.fspath(path)!r}; download=True fetches it") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"MNIST: {os.fspath(path)} cannot be read: {error}") from None
    if len(body) != math.prod(sizes):
        raise FileFormatError(
            f"MNIST: {os.fspath(path)} has {counted(len(body), 'byte')} or more; expected {sizes} by its head"
        )
    return sizes, np.frombuffer(body, np.uint8).reshape(sizes)
