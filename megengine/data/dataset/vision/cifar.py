"""CIFAR-10 and CIFAR-100: 60,000 pictures of 32 x 32 pixels (Krizhevsky 2009), in pickles of Python 2."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from megengine.core.errors import FileFormatError, MissingFileError
from megengine.core.text import counted
from megengine.data.dataset.vision.meta_vision import VisionDataset
from megengine.data.dataset.vision.utils import folder_of, load_raw_data_from_url, untar
from megengine.dispatch.refusal import constructor
from megengine.serialization.numpy_pickle import read_numpy_pickle

__all__ = ["CIFAR10", "CIFAR100"]

_SHAPE = (3, 32, 32)  # red, green, blue


class CIFAR10(VisionDataset):
    """Pictures of ten classes: an item is a picture [32,32,3] of bytes, in the order blue, green, red, and its class.

    The archive as it is published, or its folder, is read from `root` (by default ~/.cache/megengine/CIFAR10), with
    `download` from the network where it is not there. Pickles are read without running them. `timeout` has no effect.

    Raises:
        MissingFileError: files are not there, and download is off.
        FileFormatError: a file is damaged.
        HTTPDownloadError: a download fails.
    """

    url_path = "http://www.cs.utoronto.ca/~kriz/"
    raw_file_name = "cifar-10-python.tar.gz"
    raw_file_md5 = "c58f30108f718f92721af3b95e74349a"
    raw_file_dir = "cifar-10-batches-py"
    train_batch: Sequence[str] = tuple(f"data_batch_{i}" for i in range(1, 6))
    test_batch: Sequence[str] = ("test_batch",)
    meta_info: ClassVar[dict[str, str]] = {"name": "batches.meta"}
    _labels: Sequence[str] = ("labels",)

    @constructor
    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        train: bool = True,
        download: bool = True,
        timeout: int = 500,
    ) -> None:
        folder = folder_of(type(self).__name__, root, download=download)
        super().__init__(str(folder), order=("image", "image_category"))
        if not self._folder.is_dir():
            if download:
                self.download()
            elif (archive := folder / self.raw_file_name).is_file():
                untar(archive)
        if not self._folder.is_dir():
            raise MissingFileError(
                f"{type(self).__name__}: there is neither {self.raw_file_dir} nor {self.raw_file_name} in "
                f"{str(folder)!r}; download=True fetches it"
            )
        self.arrays = self.bytes2array(self.train_batch if train else self.test_batch)

    @property
    def _folder(self) -> Path:
        return Path(str(self.root), self.raw_file_dir)

    @property
    def meta(self) -> dict[bytes, Any]:
        """What the file of the names of classes holds, as bytes."""
        return {_bytes(key): _bytes(value) for key, value in self._read(self.meta_info["name"]).items()}

    def download(self) -> None:
        """Fetch the archive and unpack it."""
        name = self.raw_file_name
        load_raw_data_from_url(self.url_path + name, name, self.raw_file_md5, str(self.root))
        untar(Path(str(self.root), name))

    def bytes2array(self, filenames: Sequence[str]) -> tuple[Any, ...]:
        """Pictures [N,32,32,3], and one array of classes for each kind of label."""
        parts = [self._part(name) for name in filenames]
        pictures, *labels = (np.concatenate(each) for each in zip(*parts, strict=True))
        return pictures, *(each.astype(np.int32) for each in labels)

    def _part(self, name: str) -> tuple[np.ndarray, ...]:
        held = self._read(name)
        missing = [key for key in ("data", *self._labels) if key not in held]
        data = held.get("data")
        if missing or not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.size % np.prod(_SHAPE):
            raise FileFormatError(f"{type(self).__name__}: {name} lacks {missing or 'pictures of 3 x 32 x 32 bytes'}")
        pictures = data.reshape(-1, *_SHAPE).transpose(0, 2, 3, 1)[..., ::-1]
        labels = [np.asarray(held[key]) for key in self._labels]
        if any(each.shape != (len(pictures),) or each.dtype.kind not in "iu" for each in labels):
            count = counted(len(pictures), "picture")
            raise FileFormatError(f"{type(self).__name__}: {name} has not one class for each of {count}")
        return np.ascontiguousarray(pictures), *labels

    def _read(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        if not path.is_file():
            raise MissingFileError(f"{type(self).__name__}: there is no file {str(path)!r}")
        held = read_numpy_pickle(path)
        if not isinstance(held, dict):
            raise FileFormatError(f"{type(self).__name__}: {path} holds a {type(held).__name__}; expected a dict")
        return {key.decode("latin-1") if isinstance(key, bytes) else str(key): value for key, value in held.items()}

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(array[index] for array in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


class CIFAR100(CIFAR10):
    """Pictures of a hundred classes in twenty groups: an item is a picture, its class, and its group; see `CIFAR10`."""

    raw_file_name = "cifar-100-python.tar.gz"
    raw_file_md5 = "eb9058c3a382ffc7106e4002c42a8d85"
    raw_file_dir = "cifar-100-python"
    train_batch = ("train",)
    test_batch = ("test",)
    meta_info: ClassVar[dict[str, str]] = {"name": "meta"}
    _labels = ("fine_labels", "coarse_labels")


def _bytes(value: Any) -> Any:
    """Text as bytes, as Python 2 stored it; in lists, too."""
    if isinstance(value, str):
        return value.encode("latin-1")
    return [_bytes(one) for one in value] if isinstance(value, list) else value
