"""Resizing of open axes in every way that Resize knows: places and weights are computed where the network runs."""

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.convert.onnx.context import OnnxNode, Value
from megengine.convert.onnx.resizing import CUBIC, NEAREST, NEAREST_PLACES, PLACES, Axis, cubic_far, cubic_near
from megengine.core.dtype import is_float, storage_of
from megengine.core.sizes import OpenRatio, is_open
from megengine.dispatch import apply
from megengine.ops.common import counting, size_tensor
from megengine.tensor import Tensor

WIDE = np.dtype(np.float64)  # of places and weights of sums of neighbours


def resized_at_run_time(node: OnnxNode, x: Value, axes: Sequence[Axis], mode: str, where: str, rounding: str) -> Value:
    """The axes one after the other, each by an index of neighbours and their weights."""
    moved = [a for a in axes if a.old != a.new or (a.begin, a.end) != (0.0, 1.0)]
    if mode != "nearest" and node.attr("antialias", 0) and moved:
        raise node.fail(
            f"how many neighbours antialias=1 takes is open, as {moved[0].old} becomes {moved[0].new}; fix these axes "
            "with input_shapes={...}, or export the model without antialias"
        )
    return node.composed(_resized, x, axes=axes, mode=mode, where=where, rounding=rounding)


def _resized(node: OnnxNode, x: Tensor, *, axes: Sequence[Axis], mode: str, where: str, rounding: str) -> Tensor:
    dtype, outside = storage_of(x.dtype), None
    y = x if is_float(dtype) or mode == "nearest" else x.astype(np.float32)
    for axis, a in enumerate(axes):
        if a.old == a.new and (a.begin, a.end) == (0.0, 1.0):
            continue
        of_places = NEAREST_PLACES if mode == "nearest" else WIDE
        lengths = _at_run_time(a, of_places)
        places = PLACES[where](counting(a.new).astype(of_places), lengths)
        if where == "tf_crop_and_resize":
            beyond = F.logical_or(places < 0, places > lengths.old - 1).reshape(_along(x, axis))
            outside = beyond if outside is None else F.logical_or(outside, beyond)
        if mode == "nearest":
            y = _taken(y, axis, NEAREST[rounding](places), lengths)
        else:
            y = _weighed(node, y, axis, places, lengths, mode)
    if outside is not None:
        y = F.where(outside, Tensor(float(node.attr("extrapolation_value", 0.0)), dtype=y.dtype), y)
    return y.astype(dtype)


def _at_run_time(a: Axis, dtype: np.dtype) -> Axis:
    """The axis with tensors for its open lengths; a factor is their quotient, or a number of the file."""
    old, new = (size_tensor(n).astype(dtype) if is_open(n) else dtype.type(n) for n in (a.old, a.new))
    return replace(a, old=old, new=new, scale=new / old if isinstance(a.scale, OpenRatio) else dtype.type(a.scale))


def _along(x: Tensor, axis: int) -> tuple[int, ...]:
    return tuple(-1 if k == axis else 1 for k in range(x.ndim))


def _taken(x: Tensor, axis: int, places: Tensor, lengths: Axis) -> Tensor:
    """The elements at places along an axis; those beyond its ends are those at the ends."""
    inside = F.maximum(F.minimum(places, lengths.old - 1), 0)
    pattern = tuple("i" if k == axis else (None, None, None) for k in range(x.ndim))
    return apply("index", x, inside.astype("int64"), pattern=pattern)


def _weighed(node: OnnxNode, x: Tensor, axis: int, places: Tensor, lengths: Axis, mode: str) -> Tensor:
    """Sums of two or four neighbours."""
    first = F.floor(places)
    t, a = places - first, float(node.attr("cubic_coeff_a", CUBIC))
    taps: dict[int, Any] = {0: 1 - t, 1: t}
    if mode == "cubic":
        taps = {-1: cubic_far(t + 1, a), 0: cubic_near(t, a), 1: cubic_near(1 - t, a), 2: cubic_far(2 - t, a)}
    if node.attr("exclude_outside", 0):
        inside = {k: F.logical_and(first + k >= 0, first + k <= lengths.old - 1) for k in taps}
        taps = {k: w * inside[k].astype(WIDE) for k, w in taps.items()}
        total = sum(taps.values())
        taps = {k: w / total for k, w in taps.items()}
    parts = [_taken(x, axis, first + k, lengths) * w.astype(x.dtype).reshape(_along(x, axis)) for k, w in taps.items()]
    return functools.reduce(operator.add, parts)
