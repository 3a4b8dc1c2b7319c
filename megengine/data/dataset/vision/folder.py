"""Pictures in folders, a folder for each class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.errors import ArgumentError, MissingFileError
from megengine.data.dataset.vision.meta_vision import VisionDataset
from megengine.data.dataset.vision.utils import is_img, read_picture
from megengine.dispatch.refusal import constructor

__all__ = ["ImageFolder"]


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
        self.check_valid = check_valid_func or is_img
        self.class_name = class_name
        self.class_dict = self.collect_class()
        self.samples = self.collect_samples()

    def collect_class(self) -> dict[str, Any]:
        """The number of each class, an int32, by the name of its folder."""
        names = sorted(entry.name for entry in os.scandir(self._folder) if entry.is_dir())
        return dict(zip(names, np.arange(len(names), dtype=np.int32), strict=True))

    def collect_samples(self) -> list[tuple[str, Any]]:
        """The path of each picture, and its class."""
        return [sample for name in self.class_dict for sample in self._samples_of(name)]

    def _samples_of(self, name: str) -> Iterator[tuple[str, Any]]:
        label = name if self.class_name else self.class_dict[name]
        for folder, _, files in sorted(os.walk(os.path.join(self._folder, name))):
            paths = (os.path.join(folder, file) for file in sorted(files))
            yield from ((path, label) for path in paths if self.check_valid(path))

    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]:
        path, label = self.samples[index]
        return read_picture(path, type(self).__name__), label

    def __len__(self) -> int:
        return len(self.samples)
