"""Transforms that give pictures another size; masks, boxes and points go with their picture."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import random
from megengine.core.errors import ArgumentError, OptionError
from megengine.data.transform.base import OfPictures, part_of, picture
from megengine.data.transform.resizing import LINEAR, NEAREST, resized
from megengine.dispatch.refusal import constructor, explains


def _is_pair(values: Any, least: float) -> bool:
    return (
        isinstance(values, Sequence)
        and len(values) == 2
        and all(isinstance(v, numbers.Real) and not isinstance(v, bool) and float(v) >= least for v in values)
    )


def _size(name: str, size: Any) -> Any:
    """One length, or (height, width)."""
    lengths = size if isinstance(size, Sequence) else (size, size)
    if not _is_pair(lengths, 1) or not all(isinstance(v, numbers.Integral) for v in lengths):
        raise ArgumentError(f"{name}: output_size is {size!r}; expected one length or (height, width), at least 1")
    return (int(lengths[0]), int(lengths[1])) if isinstance(size, Sequence) else int(size)


def _ranged(name: str, argument: str, values: Any) -> tuple[float, float]:
    if not _is_pair(values, 0) or not 0 < values[0] <= values[1]:
        raise ArgumentError(f"{name}: {argument} is {values!r}; expected (least, most), above 0")
    return float(values[0]), float(values[1])


class Resize(OfPictures):
    """Another size: (height, width), or the length of the shorter side. `interpolation` is OpenCV's 0 or 1 (linear).

    Bytes are those of `cv2.resize`. Masks take the nearest point.
    """

    @constructor
    def __init__(self, output_size: Any, interpolation: int = LINEAR, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        self.output_size = _size(type(self).__name__, output_size)
        self.interpolation = interpolation

    @explains
    def apply(self, input: Any) -> Any:
        """An item, resized by the size of its picture."""
        height, width = self._get_image(input).shape[:2]
        self._have = height, width
        self._wanted = self._chosen(height, width)
        return super().apply(input)

    def _chosen(self, height: int, width: int) -> tuple[int, int]:
        if not isinstance(self.output_size, int):
            return self.output_size
        short = min(height, width)
        if not short:
            return height, width
        return int(self.output_size * height / short), int(self.output_size * width / short)

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return resized(type(self).__name__, image, self._wanted, self.interpolation)

    def _apply_mask(self, mask: Any) -> np.ndarray:
        return resized(type(self).__name__, part_of(self, "mask", mask), self._wanted, NEAREST)

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = part_of(self, "coords", coords)
        (height, width), (new_height, new_width) = self._have, self._wanted
        scaled = coords * np.asarray((new_width / max(width, 1), new_height / max(height, 1)), np.float64)
        return scaled.astype(coords.dtype)


class RandomResize(Resize):
    """Both sides multiplied by one random number of `scale_range` (least, most)."""

    @constructor
    def __init__(self, scale_range: Any, interpolation: int = LINEAR, *, order: Sequence[str] | None = None) -> None:
        super().__init__(1, interpolation, order=order)
        self.scale_range = _ranged(type(self).__name__, "scale_range", scale_range)

    def _chosen(self, height: int, width: int) -> tuple[int, int]:
        scale = random.generator().uniform(*self.scale_range)
        return round(height * scale), round(width * scale)


class ShortestEdgeResize(Resize):
    """The shorter side gets a length, unless the longer one would be above `max_size`: then that one gets it.

    `min_size` is one length, or several: one of [least, most] (`sample_style` "range") or of a list ("choice").
    """

    @constructor
    def __init__(
        self,
        min_size: Any,
        max_size: int,
        sample_style: str = "range",
        interpolation: int = LINEAR,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(1, interpolation, order=order)
        sizes: list[Any] = list(min_size) if isinstance(min_size, Sequence) else [min_size]
        if sample_style not in ("range", "choice"):
            raise OptionError(f"ShortestEdgeResize: sample_style is {sample_style!r}; expected 'range' or 'choice'")
        lengths = all(isinstance(n, numbers.Integral) and int(n) > 0 for n in (*sizes, max_size))
        if not sizes or not lengths or (sample_style == "range" and len(sizes) > 2):
            expected = "expected lengths of at least 1; for 'range' one, or (least, most)"
            raise ArgumentError(f"ShortestEdgeResize: min_size={min_size!r}, max_size={max_size!r}; {expected}")
        self.min_size, self.max_size, self.sample_style = sizes, max_size, sample_style

    def _chosen(self, height: int, width: int) -> tuple[int, int]:
        draw, sizes = random.generator(), self.min_size
        drawn = draw.integers(sizes[0], sizes[-1] + 1) if self.sample_style == "range" else draw.choice(sizes)
        short, long = max(min(height, width), 1), max(height, width)
        scale = int(drawn) / short
        if scale * long > self.max_size:
            scale = self.max_size / long
        return round(height * scale), round(width * scale)


class RandomResizedCrop(Resize):
    """A random part, of a share of the area in `scale_range` and a width by height in `ratio_range`, resized.

    After ten parts that are larger than the picture, the middle is taken.
    """

    @constructor
    def __init__(
        self,
        output_size: Any,
        scale_range: Any = (0.08, 1.0),
        ratio_range: Any = (3.0 / 4, 4.0 / 3),
        interpolation: int = LINEAR,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        super().__init__(output_size, interpolation, order=order)
        if isinstance(self.output_size, int):
            self.output_size = self.output_size, self.output_size
        self.scale_range = _ranged(type(self).__name__, "scale_range", scale_range)
        self.ratio_range = _ranged(type(self).__name__, "ratio_range", ratio_range)

    def _chosen(self, height: int, width: int) -> tuple[int, int]:
        self._top, self._left, *self._have = self._part(height, width)
        return self.output_size

    def _part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width of a random part."""
        draw, ratios = random.generator(), self.ratio_range
        for _ in range(10):
            area = height * width * draw.uniform(*self.scale_range)
            ratio = math.exp(draw.uniform(math.log(ratios[0]), math.log(ratios[1])))
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                return int(draw.integers(height - h + 1)), int(draw.integers(width - w + 1)), h, w
        ratio = min(max(width / max(height, 1), ratios[0]), ratios[1])
        h, w = min(height, round(width / ratio)), min(width, round(height * ratio))
        return (height - h) // 2, (width - w) // 2, h, w

    def _cut(self, image: np.ndarray) -> np.ndarray:
        height, width = self._have
        return image[self._top : self._top + height, self._left : self._left + width]

    def _apply_image(self, image: np.ndarray) -> np.ndarray:
        return super()._apply_image(self._cut(picture(type(self).__name__, image)))

    def _apply_mask(self, mask: Any) -> np.ndarray:
        return super()._apply_mask(self._cut(part_of(self, "mask", mask)))

    def _apply_coords(self, coords: np.ndarray) -> np.ndarray:
        coords = part_of(self, "coords", coords)
        return super()._apply_coords(coords - np.asarray((self._left, self._top), coords.dtype))
