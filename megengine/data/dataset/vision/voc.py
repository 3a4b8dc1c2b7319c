"""Pascal VOC: pictures with boxes, or with a class for each pixel (Everingham et al. 2010)."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from megengine.core.errors import ArgumentError, FileFormatError, MissingFileError
from megengine.data.dataset.vision.categories import PASCAL_VOC
from megengine.data.dataset.vision.meta_vision import VisionDataset
from megengine.data.dataset.vision.utils import read_picture
from megengine.dispatch.refusal import constructor

__all__ = ["PascalVOC"]

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
_OTHER = 255  # in masks: no class


def _color(number: int) -> list[int]:
    """The colour of a class in masks, blue first: bit 3k, 3k+1, 3k+2 of the number is bit 7-k of red, green, blue."""
    channels = [sum((number >> (3 * k + c) & 1) << (7 - k) for k in range(3)) for c in range(3)]
    return channels[::-1]


class PascalVOC(VisionDataset):
    """The pictures that a file of ImageSets names, `root` being a folder as VOC2012.

    An item is a tuple of the parts that `order` names: "image" [H,W,3] of bytes, blue first; "boxes" [N,4] of float32
    (xmin, ymin, xmax, ymax); "boxes_category" [N] of int32, from 1; "mask" [H,W,1] of bytes, 0 where there is nothing
    and 255 where there is no class, instead of boxes; "info" [height, width, name without ending].

    Raises:
        MissingFileError: a file is not there.
        FileFormatError: a file is damaged, or names a class that there is not.
        UnsupportedError: `order` names another part. ArgumentError: it names boxes and masks.
    """

    supported_order: Sequence[str] = ("image", "boxes", "boxes_category", "mask", "info")
    class_names: Sequence[str] = PASCAL_VOC
    class_colors: ClassVar[list[list[int]]] = [_color(i) for i in range(len(PASCAL_VOC) + 1)]

    @constructor
    def __init__(self, root: str, image_set: str, *, order: Sequence[str] | None = None) -> None:
        super().__init__(root, order=order, supported_order=self.supported_order)
        if "mask" in self.order and {"boxes", "boxes_category"} & set(self.order):
            raise ArgumentError(f"PascalVOC: order is {tuple(self.order)}; expected boxes or masks, not both")
        self.image_set = image_set
        kind = "Segmentation" if "mask" in self.order else "Main"
        listed = self._path("ImageSets", kind, f"{image_set}.txt")
        try:
            with open(listed) as file:
                self.file_names = [line.split()[0] for line in file if line.strip()]
        except FileNotFoundError:
            raise MissingFileError(f"PascalVOC: there is no file {listed!r}") from None

    def _path(self, *parts: str) -> str:
        return os.path.join(str(self.root), *parts)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        name = self.file_names[index]
        described: ET.Element | None = None
        parts: list[Any] = []
        for part in self.order:
            if part in ("boxes", "boxes_category") and described is None:
                described = self._annotation(name)
            if part == "image":
                parts.append(read_picture(self._path("JPEGImages", f"{name}.jpg"), "PascalVOC"))
            elif part == "mask":
                parts.append(_classes(read_picture(self._path("SegmentationClass", f"{name}.png"), "PascalVOC")))
            elif part == "info":
                info = self.get_img_info(index)
                parts.append([info["height"], info["width"], info["file_name"]])
            else:
                assert described is not None
                parts.append(self._boxes(described, name) if part == "boxes" else self._categories(described, name))
        return tuple(parts)

    def __len__(self) -> int:
        return len(self.file_names)

    def get_img_info(self, index: int, image: np.ndarray | None = None) -> dict[str, Any]:
        """Height, width and name of a picture, which may be given."""
        name = self.file_names[index]
        if image is None:
            image = read_picture(self._path("JPEGImages", f"{name}.jpg"), "PascalVOC")
        return {"height": image.shape[0], "width": image.shape[1], "file_name": name}

    def _annotation(self, name: str) -> ET.Element:
        path = self._path("Annotations", f"{name}.xml")
        try:
            return ET.parse(path).getroot()
        except FileNotFoundError:
            raise MissingFileError(f"PascalVOC: there is no file {path!r}") from None
        except ET.ParseError as error:
            raise FileFormatError(f"PascalVOC: {path} is not XML: {error}") from None

    def _boxes(self, root: ET.Element, name: str) -> np.ndarray:
        try:
            corners = [[float(box.findtext(f"bndbox/{c}", "?")) for c in _CORNERS] for box in root.iter("object")]
        except ValueError:
            raise FileFormatError(f"PascalVOC: a box of {name} has no {', '.join(_CORNERS)} that are numbers") from None
        return np.array(corners, np.float32).reshape(-1, 4)

    def _categories(self, root: ET.Element, name: str) -> np.ndarray:
        found = [box.findtext("name", "").strip() for box in root.iter("object")]
        unknown = [one for one in found if one not in self.class_names]
        if unknown:
            raise FileFormatError(f"PascalVOC: {name} names the class {unknown[0]!r}; see PascalVOC.class_names")
        return np.array([self.class_names.index(one) + 1 for one in found], np.int32)


def _classes(mask: np.ndarray) -> np.ndarray:
    """The class [H,W,1] of each pixel by its colour [H,W,3]."""
    packed = (mask.astype(np.uint32) << np.array([16, 8, 0], np.uint32)).sum(axis=2)
    classes = np.full((*mask.shape[:2], 1), _OTHER, np.uint8)
    for number, (blue, green, red) in enumerate(PascalVOC.class_colors):
        classes[packed == (blue << 16 | green << 8 | red)] = number
    return classes
