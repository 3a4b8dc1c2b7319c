"""Values that follow from open sizes, while importing: arrays of objects whose elements keep their formulas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.sizes import OpenRatio, OpenSize, as_quotient, is_open, largest, name_of
from megengine.dispatch import apply
from megengine.ops.common import size_tensor
from megengine.tensor import Tensor


def is_open_array(value: Any) -> bool:
    """Whether a value holds numbers that follow from open sizes."""
    return isinstance(value, np.ndarray) and value.dtype == object


def open_dtype(value: np.ndarray) -> np.dtype:
    """The dtype that the elements of such an array stand for."""
    if value.dtype.metadata:
        return np.dtype(value.dtype.metadata["stands_for"])
    return np.dtype(np.float32 if any(isinstance(n, float) for n in value.reshape(-1)) else np.int64)


def of_dtype(value: np.ndarray, dtype: Any) -> np.ndarray:
    """The array with a dtype, or one that its elements stand for."""
    if not is_open_array(value):
        return value.astype(dtype)
    return value.view(np.dtype(object, metadata={"stands_for": np.dtype(dtype).name}))


def settled(elements: Iterable[Any], shape: Sequence[int], dtype: Any = np.int64) -> np.ndarray:
    """An array of numbers, of objects if one of them follows from open sizes."""
    flat = list(elements)
    if not any(isinstance(n, (OpenSize, OpenRatio)) for n in flat):
        return np.array(flat, dtype).reshape(shape)
    made = np.empty(len(flat), object)
    made[:] = flat
    return made.reshape(shape)


def numbers_of(value: np.ndarray, inputs: Iterable[Any] = (), dtype: Any = None) -> Tensor:
    """An array of numbers that follow from open sizes, made by ops: a size is the sum of so many ones.

    `inputs` are nodes of the graph whose shapes hold the open axes; without `dtype` it is that of `open_dtype`.
    """
    if not is_open_array(value):
        return Tensor._wrap(value)
    shown = ((name_of(n), int(n)) for node in inputs for n in node.spec.shape)
    examples = {name: n for name, n in shown if name is not None}
    dtype = open_dtype(value) if dtype is None else dtype
    parts = [_number(n, examples).astype(dtype).reshape(1) for n in value.reshape(-1)]
    made = parts[0] if len(parts) == 1 else apply("concat", *parts, axis=0)
    return apply("reshape", made, shape=value.shape)


def _number(n: Any, examples: Mapping[str, int]) -> Tensor:
    """An integer, or a quotient of two in float64, which is rounded once."""
    if not isinstance(n, float):
        return _signed(n)
    if not isinstance(n, OpenRatio):
        return Tensor(np.float64(n), dtype=np.float64)
    above, below = (factor * _signed(size).astype("float64") for factor, size in as_quotient(n, examples))
    return above / below


def _signed(size: int) -> Tensor:
    total, below_zero = size_tensor(largest(size, 0)), largest(-size, 0)
    return total - size_tensor(below_zero) if is_open(below_zero) or below_zero else total
