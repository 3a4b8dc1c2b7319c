"""Changes to pictures [H,W,C] of NumPy arrays, alone or in a tuple with their masks, boxes, points and labels."""

from __future__ import annotations

import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from megengine import random
from megengine.core import absent
from megengine.core.errors import ArgumentError, MissingMethodError, OptionError, ShapeError, UnsupportedError, brief
from megengine.core.exports import own_names
from megengine.core.text import counted
from megengine.data.transform.base import (
    InPlace,
    OfPictures,
    PseudoTransform,
    Transform,
    VisionTransform,
    by_channel,
    part_of,
    picture,
)
from megengine.data.transform.colours import (
    BrightnessTransform,
    ColorJitter,
    ContrastTransform,
    GaussianNoise,
    HueTransform,
    Lighting,
    SaturationTransform,
)
from megengine.data.transform.functional import pad
from megengine.data.transform.sizes import RandomResize, RandomResizedCrop, Resize, ShortestEdgeResize
from megengine.dispatch.refusal import constructor, explains


class Compose(VisionTransform):
    """Transforms one after the other; with `order`, each takes it.

    Several items go through all transforms one by one, with `batch_compose` through each transform together.
    `shuffle_indices` names transforms by their places from 1: those of a group change places at random in every call.
    """

    @constructor
    def __init__(
        self,
        transforms: Sequence[Any] = (),
        batch_compose: bool = False,
        shuffle_indices: Sequence[tuple[int, ...]] | None = None,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(order)
        wrong = [t for t in transforms if not hasattr(t, "apply")]
        if wrong:
            raise ArgumentError(f"Compose: got a {type(wrong[0]).__name__}; expected transforms")
        self.transforms, self.batch_compose, self.shuffle_indices = list(transforms), batch_compose, shuffle_indices
        if any(not 1 <= place <= len(self.transforms) for group in shuffle_indices or () for place in group):
            raise OptionError(f"Compose: shuffle_indices is {shuffle_indices}; expected 1 to {len(self.transforms)}")
        for t in self.transforms if order is not None else ():
            t.order = self.order

    def _in_order(self) -> list[Any]:
        ordered = list(self.transforms)
        for group in self.shuffle_indices or ():
            for place, source in zip(group, random.generator().permutation(group), strict=True):
                ordered[place - 1] = self.transforms[source - 1]
        return ordered

    @explains
    def apply(self, input: Any) -> Any:
        """Through every transform in turn."""
        for transform in self._in_order():
            input = transform.apply(input)
        return input

    @explains
    def apply_batch(self, inputs: Sequence[Any]) -> Any:
        """Several items: see `batch_compose`."""
        if not self.batch_compose:
            return super().apply_batch(inputs)
        for transform in self._in_order():
            inputs = transform.apply_batch(inputs)
        return inputs


class Normalize(InPlace):
    """(image - mean) / std by channel, as float32."""

    @constructor
    def __init__(self, mean: Any = 0.0, std: Any = 1.0, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        name = type(self).__name__
        self.mean, self.std = (np.float32(by_channel(name, n, v)) for n, v in (("mean", mean), ("std", std)))
        if np.any(self.std == 0):
            raise OptionError(f"Normalize: std is {std}; expected numbers other than 0")

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values.size > 1 and image.ndim and image.shape[-1] not in (1, values.size):
                raise ShapeError(
                    f"Normalize: a picture has shape {image.shape}, and {name} {counted(values.size, 'number')}; "
                    "expected one for each channel of the last axis"
                )
        return ((image - self.mean) / self.std).astype(np.float32)


class ToMode(OfPictures, InPlace):
    """[H,W,C] -> [C,H,W]."""

    @constructor
    def __init__(self, mode: str = "CHW", *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if mode not in ("CHW",):
            raise OptionError(f"ToMode: mode is {mode!r}; expected 'CHW'")
        self.mode = mode

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(image.transpose(2, 0, 1))

    def _apply_mask(self, mask: Any) -> Any:
        return self._apply_image(mask) if np.ndim(mask) == 3 else mask


def _is_length(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and int(value) >= 0


class CenterCrop(OfPictures):
    """The middle (height, width) of a picture. Raises ShapeError for a smaller picture."""

    @constructor
    def __init__(self, output_size: Any, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        size = (output_size, output_size) if isinstance(output_size, numbers.Integral) else output_size
        if not isinstance(size, Sequence) or len(size) != 2 or not all(map(_is_length, size)):
            name, expected = type(self).__name__, "expected one length or (height, width), at least 0"
            raise ArgumentError(f"{name}: output_size is {output_size!r}; {expected}")
        self.output_size = int(size[0]), int(size[1])

    @explains
    def apply(self, input: Any) -> Any:
        """An item, cut by the size of its picture."""
        self._top, self._left = self._corner(self._get_image(input).shape)
        return super().apply(input)

    def _corner(self, shape: tuple[int, ...]) -> tuple[int, int]:
        room = shape[0] - self.output_size[0], shape[1] - self.output_size[1]
        if min(room) < 0:
            raise ShapeError(f"{type(self).__name__}: a picture {shape[:2]} is smaller than {self.output_size}")
        return round(room[0] / 2), round(room[1] / 2)  # halves to the even number, as in MegEngine

    def _cut(self, image: np.ndarray) -> np.ndarray:
        (height, width), top, left = self.output_size, self._top, self._left
        return image[top : top + height, left : left + width]

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return self._cut(image)

    def _apply_mask(self, mask: Any) -> np.ndarray:
        return self._cut(part_of(self, "mask", mask))

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = part_of(self, "coords", coords)
        return coords - np.asarray((self._left, self._top), coords.dtype)


class Pad(OfPictures):
    """A border of `value` around a picture: `size` is one width, (bottom, right), or (top, bottom, left, right).

    As in MegEngine a single `value` is that of the first channel, and the others get 0. Masks get `mask_value`.
    """

    @constructor
    def __init__(
        self, size: Any = 0, value: Any = 0, mask_value: float = 0, *, order: Sequence[str] | None = None
    ) -> None:
        super().__init__(order)
        one = isinstance(size, numbers.Integral)
        widths = (size,) * 4 if one else tuple(size) if isinstance(size, (tuple, list)) else ()
        if len(widths) == 2:
            widths = (0, widths[0], 0, widths[1])
        if len(widths) != 4 or not all(map(_is_length, widths)):
            raise OptionError(f"{type(self).__name__}: size is {size!r}; expected one width, two or four, at least 0")
        self.size, self.mask_value = tuple(map(int, widths)), mask_value
        self.value = by_channel(type(self).__name__, "value", value)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return pad(image, self.size, self.value)

    def _apply_mask(self, mask: Any) -> np.ndarray:
        return _padded_mask(part_of(self, "mask", mask), self.size, self.mask_value)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = part_of(self, "coords", coords)
        return coords + np.asarray((self.size[2], self.size[0]), coords.dtype)


def _padded_mask(mask: np.ndarray, size: Sequence[int], value: float) -> np.ndarray:
    return np.pad(mask, [size[:2], size[2:], *[(0, 0)] * (mask.ndim - 2)], constant_values=value)


class RandomCrop(CenterCrop):
    """A part of (height, width) at a random place, after a border (see Pad); smaller pictures are filled up."""

    @constructor
    def __init__(
        self,
        output_size: Any,
        padding_size: Any = 0,
        padding_value: Any = (0, 0, 0),
        padding_maskvalue: float = 0,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(output_size, order=order)
        self.pad = Pad(padding_size, padding_value, padding_maskvalue, order=self.order)
        self.padding_value = by_channel(type(self).__name__, "padding_value", padding_value)
        self.padding_maskvalue = padding_maskvalue

    @explains
    def apply(self, input: Any) -> Any:
        """An item with its border, cut at a random place."""
        self.pad.order = self.order
        return super().apply(self.pad.apply(input))

    def _corner(self, shape: tuple[int, ...]) -> tuple[int, int]:
        room = [have - n for n, have in zip(self.output_size, shape[:2], strict=True)]
        self._border = (0, max(-room[0], 0), 0, max(-room[1], 0))
        top, left = (int(random.generator().integers(max(n, 0) + 1)) for n in room)
        return top, left

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return self._cut(pad(image, self._border, self.padding_value))

    def _apply_mask(self, mask: Any) -> np.ndarray:
        return self._cut(_padded_mask(part_of(self, "mask", mask), self._border, self.padding_maskvalue))


class RandomHorizontalFlip(OfPictures):
    """Left and right exchanged with probability `prob`."""

    _axis = 1

    @constructor
    def __init__(self, prob: float = 0.5, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if not 0 <= prob <= 1:
            raise OptionError(f"{type(self).__name__}: prob is {prob}; expected a probability in [0, 1]")
        self.prob = prob

    @explains
    def apply(self, input: Any) -> Any:
        """An item, of which all parts are exchanged or none."""
        self._flipped = random.generator().random() < self.prob
        self._length = self._get_image(input).shape[self._axis]
        return super().apply(input)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.flip(image, self._axis)) if self._flipped else image

    def _apply_mask(self, mask: Any) -> np.ndarray:
        return self._apply_image(part_of(self, "mask", mask))

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = part_of(self, "coords", coords)
        if not self._flipped:
            return coords
        moved = coords.copy()
        moved[..., 1 - self._axis] = self._length - moved[..., 1 - self._axis]
        return moved


class RandomVerticalFlip(RandomHorizontalFlip):
    """Top and bottom exchanged with probability `prob`."""

    _axis = 0


for _kind in [v for v in globals().values() if isinstance(v, type) and issubclass(v, Transform)]:
    _kind.__module__ = __name__

__getattr__ = partial(absent.part_or_error, __name__)
__all__ = own_names(globals())
