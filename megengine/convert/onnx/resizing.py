"""Where Resize takes each element of an axis from, as the standard defines it: for numbers, and for tensors of ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.sizes import at, closed
from megengine.tensor import Tensor

NEAREST_PLACES = np.dtype(np.float32)  # of places of which the nearest element is taken: ties are those of runtimes
CUBIC = -0.75  # the parameter of cubic weights that a node leaves out


def _in_either(array: Callable[..., Any], tensor: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *xs: (tensor if any(isinstance(x, Tensor) for x in xs) else array)(*xs)


_floor, _ceil = _in_either(np.floor, F.floor), _in_either(np.ceil, F.ceil)
_least, _largest = _in_either(np.minimum, F.minimum), _in_either(np.maximum, F.maximum)


TIE = 1e-6  # of this distance from the middle places are in the middle, as ONNX Runtime 1.32 takes them


def _rounded(place: Any, least: float) -> Any:
    """The nearest integer; the fraction from which it is the next one is compared, since a sum would round."""
    below = _floor(place)
    return below + (place - below >= least).astype(place.dtype)


NEAREST: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda place: _rounded(place, 0.5 + TIE),
    "round_prefer_ceil": lambda place: _rounded(place, 0.5 - TIE),
    "floor": _floor,
    "ceil": _ceil,
}


@dataclass(frozen=True, slots=True)
class Axis:
    """How an axis of length `old` becomes one of length `new`, and where in the old one it begins and ends.

    The lengths are numbers, or tensors where they are known while the network runs.
    """

    old: Any
    new: Any
    scale: Any
    begin: float = 0.0
    end: float = 1.0
    sized: bool = False  # whether the file gives the new length, and not the factor

    def at(self, sizes: Mapping[str, int]) -> Axis:
        """The axis without open sizes: at these sizes, or those of the example."""
        lengths = self.old, self.new, self.scale
        old, new, scale = at(lengths, sizes) if sizes else closed(lengths)
        return replace(self, old=old, new=new, scale=float(scale))

    @property
    def exact(self) -> Any:
        """The new length before rounding."""
        return self.new if self.sized else self.scale * self.old


def _align_corners(i: Any, a: Axis) -> Any:
    return i * (a.old - 1) / _largest(a.exact - 1, 1)  # of one element the place is 0


def _crop(i: Any, a: Axis) -> Any:
    step, is_one = (a.end - a.begin) * (a.old - 1), 1 - _least(a.new - 1, 1)
    return a.begin * (a.old - 1) + i * step / _largest(a.exact - 1, 1) + step / 2 * is_one


def _tf_half_pixel(i: Any, a: Axis) -> Any:
    """Of opsets 11 and 12: the middle of each element; axes with a factor of 1 stay, as in ONNX Runtime."""
    return (i + (a.scale != 1).astype(i.dtype) / 2) / a.scale


PLACES: dict[str, Callable[[Any, Axis], Any]] = {  # of each element in the old axis, as Resize defines it
    "half_pixel": lambda i, a: (i + 0.5) / a.scale - 0.5,
    "half_pixel_symmetric": lambda i, a: a.old / 2 * (1 - a.new / a.exact) + (i + 0.5) / a.scale - 0.5,
    "pytorch_half_pixel": lambda i, a: ((i + 0.5) / a.scale - 0.5) * _least(a.new - 1, 1),
    "align_corners": _align_corners,
    "asymmetric": lambda i, a: i / a.scale,
    "tf_half_pixel_for_nn": _tf_half_pixel,
    "tf_crop_and_resize": _crop,
}


def cubic_near(d: Any, a: float) -> Any:
    """The weight of a neighbour at a distance up to 1 (Keys 1981)."""
    return ((a + 2) * d - (a + 3)) * d * d + 1


def cubic_far(d: Any, a: float) -> Any:
    """The weight of a neighbour at a distance from 1 to 2 (Keys 1981)."""
    return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
