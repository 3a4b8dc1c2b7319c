"""Values that follow from open sizes, while importing: arrays of objects whose elements keep their formulas."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from megengine.core.sizes import OpenRatio, OpenSize, as_fraction, largest
from megengine.dispatch import apply
from megengine.ops.common import size_tensor
from megengine.tensor import Tensor


def is_open_array(value: Any) -> bool:
    """Whether a value holds numbers that follow from open sizes."""
    return isinstance(value, np.ndarray) and value.dtype == object


def open_dtype(value: np.ndarray) -> np.dtype:
    """The dtype that the elements of such an array stand for."""
    return np.dtype(np.float32 if any(isinstance(n, float) for n in value.reshape(-1)) else np.int64)


def settled(elements: Iterable[Any], shape: Sequence[int], dtype: Any = np.int64) -> np.ndarray:
    """An array of numbers, of objects if one of them follows from open sizes."""
    flat = list(elements)
    if not any(isinstance(n, (OpenSize, OpenRatio)) for n in flat):
        return np.array(flat, dtype).reshape(shape)
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(shape)


def numbers_of(value: np.ndarray) -> Tensor:
    """An array of numbers that follow from open sizes, made by ops: a size is the sum of so many ones."""
    if not is_open_array(value):
        return Tensor._wrap(value)
    parts = [_number(n).reshape(1) for n in value.reshape(-1)]
    made = parts[0] if len(parts) == 1 else apply("concat", *parts, axis=0)
    return apply("reshape", made, shape=value.shape).astype(open_dtype(value))


def _number(n: Any) -> Tensor:
    size, divisor = as_fraction(n)
    total, below_zero = size_tensor(largest(size, 0)), largest(-size, 0)
    total = total - size_tensor(below_zero) if below_zero else total
    return total if not isinstance(n, float) else total.astype("float32") / float(divisor)
