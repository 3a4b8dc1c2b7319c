"""MS COCO: pictures with boxes, classes and keypoints (Lin et al. 2014), and data sets in the same form."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from megengine.core.errors import FileFormatError
from megengine.data.dataset.vision.categories import COCO as _COCO
from megengine.data.dataset.vision.categories import COCO_KEYPOINTS, COCO_UNUSED
from megengine.data.dataset.vision.meta_vision import VisionDataset
from megengine.data.dataset.vision.utils import read_json, read_picture
from megengine.dispatch.refusal import constructor

__all__ = ["COCO", "BoxDataset"]

_LEAST_VISIBLE = 10  # keypoints, for a picture to count as one with keypoints


class BoxDataset(VisionDataset):
    """Pictures of a folder with annotations in the JSON format of COCO, ordered by their ids.

    An item is a tuple of the parts that `order` names: "image" [H,W,3] of bytes, blue first; "boxes" [N,4] of float32,
    the corners (x0, y0, x1, y1) in pixels; "boxes_category" [N] of int32, counted from 1 in the order of the ids of
    categories; "keypoints" [N,K,3] of float32 (x, y, visibility); "info" [height, width, name of the file].

    Args:
        root: the folder of the pictures.
        ann_file: the JSON file.
        remove_images_without_annotations: leave out crowds and boxes without area, and pictures without others (with
            keypoints in `order`: with fewer than ten visible).

    Raises:
        MissingFileError: a file is not there.
        FileFormatError: a file is not what it should be; the entry is named.
        UnsupportedError: `order` names another part.
    """

    supported_order: Sequence[str] = ("image", "boxes", "boxes_category", "info")
    class_names: Sequence[str] = ()

    @constructor
    def __init__(
        self,
        root: str,
        ann_file: str | os.PathLike[str],
        remove_images_without_annotations: bool = False,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(root, order=order, supported_order=self.supported_order)
        self._file = os.fspath(ann_file)
        found = read_json(ann_file, type(self).__name__)
        try:
            self._take(found, remove_images_without_annotations)
        except (AttributeError, IndexError, TypeError, ValueError) as error:
            if isinstance(error, FileFormatError):
                raise
            raise FileFormatError(f"{type(self).__name__}: {self._file} is damaged: {error}") from None

    def _take(self, found: Mapping[str, Any], sound_only: bool) -> None:
        self.imgs = {one["id"]: one for one in self._listed(found, "images", ("id", "file_name", "height", "width"))}
        self.cats = {one["id"]: one for one in self._listed(found, "categories", ("id",))}
        self.img_to_anns: dict[Any, list[Mapping[str, Any]]] = {one: [] for one in self.imgs}
        for one in self._listed(found, "annotations", ("image_id", *self._needed())):
            if one["image_id"] in self.img_to_anns:
                self.img_to_anns[one["image_id"]].append(one)
        self.ids = sorted(self.imgs)
        if sound_only:
            self.img_to_anns = {one: list(filter(_is_sound, self.img_to_anns[one])) for one in self.ids}
            self.ids = [one for one in self.ids if self._has_any(self.img_to_anns[one])]
        self.json_category_id_to_contiguous_id = {one: i for i, one in enumerate(sorted(self.cats), 1)}
        self.contiguous_category_id_to_json_id = {i: one for one, i in self.json_category_id_to_contiguous_id.items()}

    def _needed(self) -> list[str]:
        parts = {"boxes": "bbox", "boxes_category": "category_id", "keypoints": "keypoints"}
        return [parts[name] for name in self.order if name in parts]

    def _listed(self, found: Mapping[str, Any], name: str, keys: Sequence[str]) -> list[Mapping[str, Any]]:
        listed = found.get(name, [] if name == "annotations" else None)
        if not isinstance(listed, list):
            raise FileFormatError(f"{type(self).__name__}: {self._file} has no list of {name}")
        for i, one in enumerate(listed):
            lacking = [key for key in keys if key not in one] if isinstance(one, dict) else list(keys)
            if lacking:
                raise FileFormatError(f"{type(self).__name__}: {name}[{i}] of {self._file} lacks {', '.join(lacking)}")
        return listed

    def _has_any(self, annotations: Sequence[Mapping[str, Any]]) -> bool:
        if "keypoints" in self.order:
            seen = sum(v > 0 for one in annotations for v in one["keypoints"][2::3])
            return bool(annotations) and seen >= _LEAST_VISIBLE
        return bool(annotations)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        ident = self.ids[index]
        return tuple(self._part(name, ident) for name in self.order)

    def _part(self, name: str, ident: Any) -> Any:
        image, annotations = self.imgs[ident], self.img_to_anns[ident]
        try:
            if name == "boxes":
                boxes = np.array([one["bbox"] for one in annotations], np.float32).reshape(-1, 4)
                return np.concatenate([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], axis=1)
            if name == "boxes_category":
                numbers = self.json_category_id_to_contiguous_id
                return np.array([numbers[one["category_id"]] for one in annotations], np.int32)
            if name == "keypoints":
                points = [np.reshape(one["keypoints"], (-1, 3)) for one in annotations]
                return np.array(points, np.float32).reshape(len(points), -1 if points else len(COCO_KEYPOINTS), 3)
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"{type(self).__name__}: the {name} of image {ident!r} in {self._file} are damaged: {error}"
            ) from None
        if name == "info":
            return [image["height"], image["width"], image["file_name"]]
        return read_picture(os.path.join(str(self.root), image["file_name"]), type(self).__name__)

    def __len__(self) -> int:
        return len(self.ids)

    def get_img_info(self, index: int) -> Mapping[str, Any]:
        """What the file says of a picture."""
        return self.imgs[self.ids[index]]


def _is_sound(annotation: Mapping[str, Any]) -> bool:
    *_, width, height = annotation.get("bbox", (1, 1))
    return not annotation.get("iscrowd", 0) and width > 0 and height > 0


class COCO(BoxDataset):
    """MS COCO; keypoints too. See `BoxDataset`."""

    supported_order = ("image", "boxes", "boxes_category", "keypoints", "info")
    class_names = _COCO
    classes_originID: ClassVar[dict[str, int]] = dict(  # noqa: N815  the name that programs use
        zip(_COCO, (i for i in range(1, 91) if i not in COCO_UNUSED), strict=True)
    )
    keypoint_names = COCO_KEYPOINTS
