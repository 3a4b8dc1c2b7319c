"""Changes to pictures [H,W,C] of NumPy arrays, alone or first in a tuple with labels, which stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import random
from megengine.core import absent
from megengine.core.errors import ArgumentError, MissingMethodError, OptionError, ShapeError


class Transform:
    """Base: subclass it with `apply`, which takes and gives an item."""

    def apply(self, input: Any) -> Any:
        """One item."""
        raise MissingMethodError(f"{type(self).__name__} has no apply; define it in the subclass")

    def apply_batch(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Several items, one by one."""
        return tuple(self.apply(item) for item in inputs)


class PseudoTransform(Transform):
    """Changes nothing."""

    def apply(self, input: Any) -> Any:
        """The item itself."""
        return input


class VisionTransform(Transform):
    """Base for pictures: `order` says what the parts of an item are; those named "image" are changed."""

    def __init__(self, order: Sequence[str] | None = None) -> None:
        self.order = ("image",) if order is None else tuple(order)

    def apply(self, input: Any) -> Any:
        """A picture, or a tuple whose parts are named by `order`; further parts stay."""
        if not isinstance(input, tuple):
            return self._apply_image(_picture(type(self).__name__, input))
        names = self.order + ("other",) * (len(input) - len(self.order))
        pairs = zip(names, input, strict=False)
        return tuple(self._apply_image(_picture(type(self).__name__, p)) if n == "image" else p for n, p in pairs)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        raise MissingMethodError(f"{type(self).__name__} has no _apply_image; define it in the subclass")


def _picture(name: str, value: Any) -> np.ndarray:
    image = np.asarray(value)
    if image.ndim not in (2, 3):
        raise ShapeError(f"{name}: a picture has shape {image.shape}; expected [H,W,C] or [H,W]")
    return image if image.ndim == 3 else image[..., None]


class Compose(Transform):
    """Transforms one after the other."""

    def __init__(self, transforms: Sequence[Transform] = (), order: Sequence[str] | None = None) -> None:
        wrong = [t for t in transforms if not hasattr(t, "apply")]
        if wrong:
            raise ArgumentError(f"Compose: got a {type(wrong[0]).__name__}; expected transforms")
        self.transforms = list(transforms)
        if order is not None:
            for t in self.transforms:
                t.order = tuple(order)  # type: ignore[attr-defined]

    def apply(self, input: Any) -> Any:
        """Through every transform in turn."""
        for transform in self.transforms:
            input = transform.apply(input)
        return input


class Normalize(VisionTransform):
    """(image - mean) / std by channel, as float32."""

    def __init__(self, mean: Any = 0.0, std: Any = 1.0, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        self.mean, self.std = np.float32(mean), np.float32(std)
        if np.any(self.std == 0):
            raise OptionError(f"Normalize: std is {std}; expected numbers other than 0")

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return ((image - self.mean) / self.std).astype(np.float32)


class ToMode(VisionTransform):
    """[H,W,C] -> [C,H,W]."""

    def __init__(self, mode: str = "CHW", *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if mode not in ("CHW",):
            raise OptionError(f"ToMode: mode is {mode!r}; expected 'CHW'")
        self.mode = mode

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(image.transpose(2, 0, 1))


def _size(value: Any) -> tuple[int, int]:
    h, w = (value, value) if isinstance(value, int) else value
    return int(h), int(w)


def _cut(image: np.ndarray, size: tuple[int, int], top: int, left: int) -> np.ndarray:
    return image[top : top + size[0], left : left + size[1]]


class CenterCrop(VisionTransform):
    """The middle (height, width) of a picture. Raises ShapeError for a smaller one."""

    def __init__(self, output_size: Any, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        self.output_size = _size(output_size)

    def _room(self, image: np.ndarray) -> tuple[int, int]:
        room = image.shape[0] - self.output_size[0], image.shape[1] - self.output_size[1]
        if min(room) < 0:
            raise ShapeError(f"{type(self).__name__}: a picture {image.shape[:2]} is smaller than {self.output_size}")
        return room

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        top, left = self._room(image)
        return _cut(image, self.output_size, top // 2, left // 2)


class Pad(VisionTransform):
    """A border of `value` around a picture: `size` is one width, (bottom, right), or (top, bottom, left, right).

    As in MegEngine a single `value` is that of the first channel, and the others get 0.
    """

    def __init__(
        self, size: Any = 0, value: Any = 0, mask_value: float = 0, *, order: Sequence[str] | None = None
    ) -> None:
        super().__init__(order)
        given = (size,) * 4 if isinstance(size, int) else tuple(size) if isinstance(size, (tuple, list)) else ()
        if len(given) == 2:
            given = (0, given[0], 0, given[1])
        if len(given) != 4 or not all(isinstance(v, int) and v >= 0 for v in given):
            raise OptionError(f"{type(self).__name__}: size is {size!r}; expected one width, two or four, at least 0")
        self.size, self.value = given, value

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return _padded(image, self.size, self.value)


def _padded(image: np.ndarray, size: Sequence[int], value: Any) -> np.ndarray:
    top, bottom, left, right = size
    h, w, channels = image.shape
    colour = np.zeros(channels, image.dtype)
    given = np.atleast_1d(value)[:channels]
    colour[: len(given)] = given
    out = np.empty((top + h + bottom, left + w + right, channels), image.dtype)
    out[...] = colour
    out[top : top + h, left : left + w] = image
    return out


class RandomCrop(CenterCrop):
    """A part of (height, width) at a random place, after a border (see Pad); smaller pictures are filled up."""

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
        self._border, self.padding_value = Pad(padding_size, padding_value), padding_value

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        image = self._border._apply_image(image)
        lacking = [max(n - have, 0) for n, have in zip(self.output_size, image.shape[:2], strict=True)]
        image = _padded(image, (0, lacking[0], 0, lacking[1]), self.padding_value)
        top, left = (int(random.generator().integers(n + 1)) for n in self._room(image))
        return _cut(image, self.output_size, top, left)


class RandomHorizontalFlip(VisionTransform):
    """Left and right exchanged with probability `prob`."""

    _axis = 1

    def __init__(self, prob: float = 0.5, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if not 0 <= prob <= 1:
            raise OptionError(f"{type(self).__name__}: prob is {prob}; expected a probability in [0, 1]")
        self.prob = prob

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(np.flip(image, self._axis)) if random.generator().random() < self.prob else image


class RandomVerticalFlip(RandomHorizontalFlip):
    """Top and bottom exchanged with probability `prob`."""

    _axis = 0


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)


__all__ = [
    "CenterCrop",
    "Compose",
    "Normalize",
    "Pad",
    "PseudoTransform",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "ToMode",
    "Transform",
    "VisionTransform",
]
