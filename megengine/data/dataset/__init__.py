"""Data sets, which have a length and an item for each index; and streams, which give one item after the other."""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from megengine.core import absent
from megengine.core.errors import (
    ArgumentError,
    FileFormatError,
    IndexOutOfRangeError,
    MissingFileError,
    MissingMethodError,
    OptionError,
    ShapeError,
    UnsupportedError,
)
from megengine.core.text import counted
from megengine.dispatch.refusal import constructor, explains


class Dataset(ABC):
    """Base of data sets: subclass it with `__init__`, `__getitem__` and `__len__`."""

    @abstractmethod
    def __init__(self) -> None: ...

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    @abstractmethod
    def __len__(self) -> int: ...


class StreamDataset(Dataset):
    """Base of data sets that are read in their own order: subclass it with `__init__` and `__iter__`."""

    @abstractmethod
    def __init__(self) -> None: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Any]: ...

    def __getitem__(self, index: int) -> Any:
        raise ArgumentError(f"{type(self).__name__}: a stream has no item {index!r}; iterate over it")

    def __len__(self) -> int:
        raise ArgumentError(f"{type(self).__name__}: a stream has no length; iterate over it")


class ArrayDataset(Dataset):
    """Rows of arrays of one length: item i is a tuple of the i-th row of each. Raises ShapeError otherwise."""

    @constructor
    def __init__(self, *arrays: Any) -> None:
        without = [a for a in arrays if not hasattr(a, "__len__")]
        if without:
            raise ArgumentError(f"ArrayDataset: got a {type(without[0]).__name__}; expected arrays")
        lengths = [len(a) for a in arrays]
        if len(set(lengths)) != 1:
            raise ShapeError(f"ArrayDataset: arrays have lengths {lengths}; expected one or more of equal length")
        self.arrays = arrays

    @explains
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(a[index] for a in self.arrays)

    def __len__(self) -> int:
        return len(self.arrays[0])


class ConcatDataset(Dataset):
    """Data sets one after the other. Raises OptionError for none, IndexOutOfRangeError for an item outside."""

    @constructor
    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise OptionError("ConcatDataset: there is no data set; expected one or more")
        wrong = [d for d in self.datasets if isinstance(d, StreamDataset) or not hasattr(d, "__len__")]
        if wrong:
            raise ArgumentError(f"ConcatDataset: got a {type(wrong[0]).__name__}; expected data sets with a length")

    @explains
    def __getitem__(self, index: int) -> Any:
        at = operator.index(index)
        at = at + len(self) if at < 0 else at
        for dataset in self.datasets:
            if 0 <= at < len(dataset):
                return dataset[at]
            at -= len(dataset)
        raise IndexOutOfRangeError(f"ConcatDataset: item {index} is out of range for {counted(len(self), 'item')}")

    def __len__(self) -> int:
        return sum(map(len, self.datasets))


class VisionDataset(Dataset):
    """Base of data sets of pictures in a folder: `order` says what the parts of an item are, `("image",)` by default.

    A subclass names the parts that it can give in `supported_order`; UnsupportedError is raised for any other.
    """

    @constructor
    def __init__(
        self,
        root: str | bytes | os.PathLike[str] | None,
        *,
        order: Sequence[str] | None = None,
        supported_order: Sequence[str] | None = None,
    ) -> None:
        self.root = os.path.expanduser(root) if isinstance(root, (str, bytes)) else root
        self.order = ("image",) if order is None else order
        kind = type(self).__name__
        if not isinstance(self.order, Sequence):
            raise ArgumentError(f"{kind}: order is {order!r}; expected a sequence of names")
        supported = self.order if supported_order is None else supported_order
        for name in self.order:
            if name not in supported:
                raise UnsupportedError(f"{kind}: order names {name!r}; supported are {', '.join(supported)}")

    def __getitem__(self, index: int) -> Any:
        raise MissingMethodError(f"{type(self).__name__} has no __getitem__; define it in the subclass")

    def __len__(self) -> int:
        raise MissingMethodError(f"{type(self).__name__} has no __len__; define it in the subclass")


_PICTURES = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class ImageFolder(VisionDataset):
    """The pictures below a folder, whose folders are the classes, in alphabetical order.

    An item is a picture [H,W,3] of bytes, in the order blue, green, red, and the number of its class, or its name with
    `class_name`. `check_valid_func(path)` says which files are pictures; by default their names do.

    Raises:
        MissingFileError: there is no such folder.
        FileFormatError: Pillow cannot read a picture.
    """

    @constructor
    def __init__(
        self, root: str, check_valid_func: Callable[[str], bool] | None = None, class_name: bool = False
    ) -> None:
        super().__init__(root, order=("image", "image_category"))
        if check_valid_func is not None and not callable(check_valid_func):
            raise ArgumentError(f"ImageFolder: check_valid_func is {check_valid_func!r}; expected a function of paths")
        self._folder: str = os.fspath(os.path.expanduser(root))
        if not os.path.isdir(self._folder):
            raise MissingFileError(
                f"ImageFolder: there is no folder {root!r}; expected one with a folder for each class"
            )
        self.check_valid = check_valid_func or (lambda path: path.lower().endswith(_PICTURES))
        self.class_name = class_name
        names = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_dir())
        self.class_dict = {name: number for number, name in enumerate(names)}
        self.samples = [sample for name in names for sample in self._samples_of(name)]

    def _samples_of(self, name: str) -> Iterator[tuple[str, Any]]:
        label = name if self.class_name else self.class_dict[name]
        for folder, _, files in sorted(os.walk(os.path.join(self._folder, name))):
            paths = (os.path.join(folder, file) for file in sorted(files))
            yield from ((path, label) for path in paths if self.check_valid(path))

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        path, label = self.samples[index]
        return _read_picture(path), label if self.class_name else np.asarray(label, np.int32)[()]

    def __len__(self) -> int:
        return len(self.samples)


def _read_picture(path: str) -> np.ndarray:
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as picture:
            values = np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"ImageFolder: {path} is no picture that can be read: {error}") from None
    return np.ascontiguousarray(values[:, :, ::-1])


__getattr__ = partial(absent.part_or_error, __name__)


__all__ = ["ArrayDataset", "ConcatDataset", "Dataset", "ImageFolder", "StreamDataset", "VisionDataset"]
