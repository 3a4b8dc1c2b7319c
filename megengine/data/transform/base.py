"""Bases of transforms: items, the parts of an item, and which method changes which part."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import ArgumentError, MissingMethodError, OptionError, ShapeError, UnsupportedError, brief
from megengine.dispatch.refusal import constructor, explains


class Transform(ABC):
    """Base: subclass it with `apply`, which takes and gives an item."""

    @abstractmethod
    def apply(self, input: Any) -> Any:
        """One item."""

    def apply_batch(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Several items, one by one."""
        return tuple(self.apply(item) for item in inputs)

    def __repr__(self) -> str:
        return type(self).__name__


class PseudoTransform(Transform):
    """Changes nothing."""

    def apply(self, input: Any) -> Any:
        """The item itself."""
        return input


# what a part of an item is called in `order`; those below are labels, which only methods of a subclass change
_PARTS = ("image", "coords", "boxes", "mask", "keypoints", "polygons")
_LABELS = ("boxes_category", "category", "image_category", "image_info", "info")


class VisionTransform(Transform):
    """Base for pictures: `order` says what the parts of an item are, `("image",)` by default.

    Each part is given to the method of its name: `_apply_image` (what the item holds), `_apply_mask` ([H,W] or
    [H,W,C]) and `_apply_coords` ([...,2], x before y) are a subclass's; boxes ([N,4]: left, top, right, bottom),
    keypoints ([...,N,3]: x, y, visibility) and polygons (lists of lists of coords) follow from `_apply_coords`. Labels
    (`boxes_category`, `category`, `image_category`, `image_info`, `info`) and further parts are not changed, unless a
    subclass has such a method for them (`_apply_image_category`), as it may have for parts of its own (`_apply_depth`).
    """

    @constructor
    def __init__(self, order: Sequence[str] | None = None) -> None:
        order, name = ("image",) if order is None else order, type(self).__name__
        if not isinstance(order, Sequence) or isinstance(order, (str, bytes)):
            raise UnsupportedError(
                f"{name}: order is {order!r}; expected a sequence of names, such as ('image', 'boxes')"
            )
        unknown = [p for p in order if p not in (*_PARTS, *_LABELS) and not hasattr(self, f"_apply_{p}")]
        if unknown:
            known = ", ".join((*_PARTS, *_LABELS))
            raise UnsupportedError(
                f"{name}: order names {unknown[0]!r}; supported are {known}, and parts for which the class has a "
                "method such as _apply_depth"
            )
        self.order = tuple(order)

    @explains
    def apply(self, input: Any) -> Any:
        """A picture, or a tuple whose parts are named by `order`; further parts stay. A tuple of one gives its part."""
        if not isinstance(input, tuple):
            return self._changed(self.order[0] if self.order else "image", input)
        changed = tuple(self._changed(name, part) for name, part in zip(self.order, input, strict=False))
        changed += input[len(changed) :]
        return changed[0] if len(changed) == 1 else changed

    def _changed(self, name: str, part: Any) -> Any:
        change = getattr(self, f"_apply_{name}", None)
        if change is None:
            return part
        return change(self._image_of(part) if name == "image" else part)

    def _image_of(self, part: Any) -> Any:
        """What `_apply_image` is given: the part as it is, as a subclass may be for waves, spectra or objects."""
        return part

    def _get_image(self, input: Any) -> np.ndarray:
        """The picture of an item, whose size the other parts depend on."""
        if isinstance(input, tuple):
            if "image" not in self.order[: len(input)]:
                raise OptionError(f"{type(self).__name__}: order is {self.order}; expected an 'image' among the parts")
            input = input[list(self.order).index("image")]
        return picture(type(self).__name__, input)

    def _lacks(self, name: str) -> MissingMethodError:
        return MissingMethodError(f"{type(self).__name__} has no {name}; define it in the subclass")

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        raise self._lacks("_apply_image")

    def _apply_mask(self, mask: np.ndarray) -> np.ndarray:
        raise self._lacks("_apply_mask")

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        raise self._lacks("_apply_coords")

    def _apply_boxes(self, boxes: Any) -> np.ndarray:
        boxes = part_of(self, "boxes", boxes)
        ends = self._apply_coords(boxes.reshape(-1, 2, 2))
        corners = np.concatenate([ends.min(-2), ends.max(-2)], axis=-1) if len(ends) else ends
        return corners.reshape(boxes.shape)

    def _apply_keypoints(self, keypoints: Any) -> np.ndarray:
        keypoints = part_of(self, "keypoints", keypoints)
        return np.concatenate([self._apply_coords(keypoints[..., :2]), keypoints[..., 2:]], axis=-1)

    def _apply_polygons(self, polygons: Any) -> list[list[np.ndarray]]:
        lists = (list, tuple, np.ndarray)
        if not isinstance(polygons, lists) or not all(isinstance(parts, lists) for parts in polygons):
            raise ArgumentError(
                f"{type(self).__name__}: polygons are {brief(polygons)}; expected lists of lists of coords"
            )
        return [[self._apply_coords(part_of(self, "polygon", p).reshape(-1, 2)) for p in parts] for parts in polygons]


class OfPictures(VisionTransform):
    """Transforms of pictures; [H,W] counts as [H,W,1]."""

    def _image_of(self, part: Any) -> np.ndarray:
        return picture(type(self).__name__, part)


class InPlace(VisionTransform):
    """Transforms of values, in arrays of any shape, which move nothing."""

    def _image_of(self, part: Any) -> np.ndarray:
        return _real(type(self).__name__, part)

    def _apply_mask(self, mask: Any) -> Any:
        return mask

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        return coords


def picture(name: str, value: Any) -> np.ndarray:
    image = np.asarray(value)
    if image.ndim not in (2, 3):
        raise ShapeError(f"{name}: a picture has shape {image.shape}; expected [H,W,C] or [H,W]")
    image = _real(name, image)
    return image if image.ndim == 3 else image[..., None]


def of_channels(name: str, image: np.ndarray, count: int) -> np.ndarray:
    """A picture of so many channels. Raises ShapeError for others."""
    if image.ndim != 3 or image.shape[-1] != count:
        raise ShapeError(f"{name}: a picture has shape {image.shape}; expected [H,W,{count}]")
    return image


def _real(name: str, value: Any) -> np.ndarray:
    image = np.asarray(value)
    if image.dtype.kind not in "buif":
        raise ArgumentError(f"{name}: a picture holds values of {image.dtype}; expected numbers")
    return image


_FORMS: dict[str, tuple[str, Callable[[tuple[int, ...]], bool]]] = {  # of the parts beside a picture
    "mask": ("[H,W] or [H,W,C]", lambda shape: len(shape) >= 2),
    "coords": ("[...,2]", lambda shape: shape[-1:] == (2,)),
    "boxes": ("[N,4]", lambda shape: shape[-1:] == (4,) or 0 in shape),
    "keypoints": ("[...,N,3]", lambda shape: len(shape) > 0 and shape[-1] >= 2),
    "polygon": ("an even number of values", lambda shape: len(shape) > 0 and math.prod(shape) % 2 == 0),
}


def part_of(transform: VisionTransform, part: str, value: Any) -> np.ndarray:
    """A part of an item as an array. Raises ShapeError and ArgumentError where it is no such part."""
    expected, fits = _FORMS[part]
    try:
        array = np.asarray(value)
    except ValueError:  # lists of several lengths
        raise ArgumentError(f"{type(transform).__name__}: {part} is {brief(value)}; expected {expected}") from None
    if array.dtype.kind not in "buif":
        raise ArgumentError(f"{type(transform).__name__}: {part} holds {brief(value)}; expected numbers")
    if not fits(array.shape):
        raise ShapeError(f"{type(transform).__name__}: {part} has shape {array.shape}; expected {expected}")
    return array


def by_channel(name: str, argument: str, value: Any) -> Any:
    if np.asarray(value).dtype.kind not in "buif" or np.ndim(value) > 1:
        raise ArgumentError(f"{name}: {argument} is {value!r}; expected a number, or one for each channel")
    return value
