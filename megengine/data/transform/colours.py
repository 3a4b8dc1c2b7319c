"""Transforms of colours of pictures [H,W,3], in the order blue, green, red, from 0 to 255."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import random
from megengine.core.errors import OptionError
from megengine.data.transform.base import InPlace, of_channels
from megengine.dispatch.refusal import constructor, explains

_GRAY = np.array([0.114, 0.587, 0.299], np.float32)
# Principal components of the colours (red, green, blue) of ImageNet: Krizhevsky et al. 2012, as they are published
_VALUES = np.array([0.2175, 0.0188, 0.0045])
_VECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])
# of six parts of the circle of hues: which of (value, lowest, falling, rising) is blue, green and red
_SIXTHS = np.array([[1, 3, 0], [1, 0, 2], [3, 0, 1], [0, 2, 1], [0, 1, 3], [2, 1, 0]])


def _limited(image: np.ndarray, kind: np.dtype) -> np.ndarray:
    return image.clip(0, 255).astype(kind)


class _Strength(InPlace):
    """A change by a random strength around `_middle`, by at most `value`."""

    _middle = 1.0
    _most = float("inf")

    @constructor
    def __init__(self, value: float, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if not isinstance(value, numbers.Real) or not 0 <= float(value) <= self._most:
            limit = "" if np.isinf(self._most) else f" and at most {self._most}"
            raise OptionError(f"{type(self).__name__}: value is {value!r}; expected a number of at least 0{limit}")
        self.value = value

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        if self.value == 0:
            return image
        low, value = self._middle - float(self.value), float(self.value)
        strength = random.generator().uniform(max(low, 0.0) if self._middle else low, self._middle + value)
        return self._changed_by(strength, image)

    def _changed_by(self, strength: float, image: np.ndarray) -> np.ndarray:
        raise self._lacks("_changed_by")


class BrightnessTransform(_Strength):
    """All values multiplied by a random number of [1 - value, 1 + value]."""

    def _changed_by(self, strength: float, image: np.ndarray) -> np.ndarray:
        return _limited(image.astype(np.float32) * np.float32(strength), image.dtype)


class ContrastTransform(_Strength):
    """Distances to the mean gray multiplied by a random number of [1 - value, 1 + value]."""

    def _changed_by(self, strength: float, image: np.ndarray) -> np.ndarray:
        values = of_channels(type(self).__name__, image, 3).astype(np.float32)
        mean = (values @ _GRAY).mean() * np.float32(1 - strength)
        return _limited(values * np.float32(strength) + mean, image.dtype)


class SaturationTransform(_Strength):
    """Distances to the gray of each point multiplied by a random number of [1 - value, 1 + value]."""

    def _changed_by(self, strength: float, image: np.ndarray) -> np.ndarray:
        values = of_channels(type(self).__name__, image, 3).astype(np.float32)
        gray = (values @ _GRAY)[..., None] * np.float32(1 - strength)
        return _limited(values * np.float32(strength) + gray, image.dtype)


class HueTransform(_Strength):
    """Hues turned by a random share of the circle in [-value, value], at most 0.5."""

    _middle = 0.0
    _most = 0.5

    def _changed_by(self, strength: float, image: np.ndarray) -> np.ndarray:
        hue, saturation, value = _hues(of_channels(type(self).__name__, image, 3).astype(np.uint8))
        return _colours((hue + int(strength * 255)) % 256, saturation, value).astype(image.dtype)


def _hues(image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hue (256 for the circle), saturation and value of bytes, with OpenCV's rounding."""
    blue, green, red = np.moveaxis(image.astype(np.int64), -1, 0)
    value = np.maximum(np.maximum(blue, green), red)
    extent = value - np.minimum(np.minimum(blue, green), red)
    saturation = (extent * np.rint((255 << 12) / np.maximum(value, 1)).astype(np.int64) + 2048) >> 12
    sixth = np.rint((256 << 12) / (6.0 * np.maximum(extent, 1))).astype(np.int64)
    green_first = np.where(value == green, blue - red + 2 * extent, red - green + 4 * extent)
    hue = (np.where(value == red, green - blue, green_first) * sixth + 2048) >> 12
    return np.where(hue < 0, hue + 256, hue).clip(0, 255), saturation, value


def _colours(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Blue, green and red bytes of hues."""
    one = np.float32(255)
    place, share, v = hue.astype(np.float32) * np.float32(6 / 255), saturation.astype(np.float32) / one, value / one
    v = v.astype(np.float32)
    sixth = np.floor(place)
    behind = place - sixth
    parts = np.stack([v, v * (1 - share), v * (1 - share * behind), v * (1 - share * (1 - behind))], axis=-1)
    return np.rint(np.take_along_axis(parts, _SIXTHS[sixth.astype(np.intp) % 6], -1) * one).astype(np.uint8)


class ColorJitter(InPlace):
    """Brightness, contrast, saturation and hue changed at random, in random order; 0 leaves one as it is."""

    @constructor
    def __init__(
        self,
        brightness: float = 0,
        contrast: float = 0,
        saturation: float = 0,
        hue: float = 0,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(order)
        kinds = {
            BrightnessTransform: brightness,
            ContrastTransform: contrast,
            SaturationTransform: saturation,
            HueTransform: hue,
        }
        self.transforms = [kind(value) for kind, value in kinds.items() if value != 0]

    @explains
    def apply(self, input: Any) -> Any:
        """An item with other colours."""
        self._order = random.generator().permutation(len(self.transforms))
        return super().apply(input)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        for place in self._order:
            image = self.transforms[place]._apply_image(image)
        return image


class Lighting(InPlace):
    """Noise along the principal components of ImageNet's colours, of the standard deviation `scale`."""

    @constructor
    def __init__(self, scale: float, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        if not isinstance(scale, numbers.Real) or float(scale) < 0:
            raise OptionError(f"Lighting: scale is {scale!r}; expected a number of at least 0")
        self.scale = scale

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        if self.scale == 0:
            return image
        strengths = random.generator().normal(scale=float(self.scale) * 255, size=3)
        shift = (_VECTORS @ (_VALUES * strengths))[::-1]
        return _limited(of_channels("Lighting", image, 3) + shift, image.dtype)


class GaussianNoise(InPlace):
    """Normal noise, in parts of 255, added to each value."""

    @constructor
    def __init__(self, mean: float = 0.0, std: float = 1.0, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        self.mean, self.std = np.float32(mean), np.float32(std)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        noise = random.generator().normal(self.mean, self.std, image.shape)
        return _limited(image + noise * 255, image.dtype)
