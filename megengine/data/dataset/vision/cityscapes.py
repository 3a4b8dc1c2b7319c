"""Cityscapes: pictures of streets with a class for each pixel (Cordts et al. 2016)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.errors import MissingFileError, OptionError, nearest
from megengine.data.dataset.vision.categories import CITYSCAPES, CITYSCAPES_IDS
from megengine.data.dataset.vision.meta_vision import VisionDataset
from megengine.data.dataset.vision.utils import read_json, read_numbers, read_picture
from megengine.dispatch.refusal import constructor

__all__ = ["Cityscapes"]

_SETS = {"gtFine": ("train", "test", "val"), "gtCoarse": ("train", "train_extra", "val")}
_PICTURE = "_leftImg8bit.png"
_CLASSES = np.full(256, 255, np.uint8)  # of each number in files of labels; 255 does not count
_CLASSES[list(CITYSCAPES_IDS)] = np.arange(len(CITYSCAPES_IDS))


class Cityscapes(VisionDataset):
    """The pictures of one part of the data set, with annotations "gtFine" or "gtCoarse".

    An item is a tuple of the parts that `order` names: "image" [H,W,3] of bytes, blue first; "mask" [H,W,1] of bytes,
    the number of a class of `class_names` from 0, and 255 for what does not count; "info" [height, width, path].

    Raises:
        MissingFileError: a file is not there.
        FileFormatError: a file is damaged.
        OptionError: there is no such part, or kind of annotations. UnsupportedError: `order` names another part.
    """

    supported_order: Sequence[str] = ("image", "mask", "info")
    class_names: Sequence[str] = CITYSCAPES

    @constructor
    def __init__(self, root: str, image_set: str, mode: str, *, order: Sequence[str] | None = None) -> None:
        super().__init__(root, order=order, supported_order=self.supported_order)
        for option, value, known in (("mode", mode, _SETS), ("image_set", image_set, _SETS.get(mode, ()))):
            if value not in known:
                raise OptionError(
                    f"Cityscapes: {option} is {value!r}; expected one of {', '.join(known)}{nearest(str(value), known)}"
                )
        self.image_set, self.mode = image_set, mode
        folder = Path(str(self.root), "leftImg8bit", image_set)
        if not folder.is_dir():
            raise MissingFileError(f"Cityscapes: there is no folder {str(folder)!r}")
        self.images = [str(path) for path in sorted(folder.glob(f"*/*{_PICTURE}"))]

    def _beside(self, path: str, ending: str) -> str:
        city, name = Path(path).parts[-2:]
        name = f"{name.removesuffix(_PICTURE)}_{self.mode}_{ending}"
        return os.path.join(str(self.root), self.mode, self.image_set, city, name)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        path = self.images[index]
        return tuple(self._part(name, path) for name in self.order)

    def _part(self, name: str, path: str) -> Any:
        if name == "image":
            return read_picture(path, "Cityscapes")
        if name == "mask":
            return _CLASSES[read_numbers(self._beside(path, "labelIds.png"), "Cityscapes")][..., None]
        described = read_json(self._beside(path, "polygons.json"), "Cityscapes")
        return [described.get("imgHeight"), described.get("imgWidth"), path]

    def __len__(self) -> int:
        return len(self.images)
