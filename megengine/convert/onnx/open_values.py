"""Values that follow from open sizes, while importing: arrays of objects whose elements keep their formulas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from megengine.core.formulas import Formula, divides
from megengine.core.sizes import OpenRatio, OpenSize, as_quotient, is_open, largest, name_of
from megengine.dispatch import apply
from megengine.ops.common import size_tensor
from megengine.tensor import Tensor

_FEW = 16  # numbers that are made one by one: a shape; more of them are tables of places


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
    integers = [n for n in map(_whole, value.reshape(-1)) if n is not None] if value.size > _FEW else []
    if integers and len(integers) == value.size:
        return apply("reshape", _table(integers), shape=value.shape).astype(dtype)
    parts = [_number(n, examples).astype(dtype).reshape(1) for n in value.reshape(-1)]
    made = parts[0] if len(parts) == 1 else apply("concat", *parts, axis=0)
    return apply("reshape", made, shape=value.shape)


def _whole(n: Any) -> int | None:
    """A number of such an array as an integer, also where it stands for a float; None for other numbers."""
    if isinstance(n, int):
        return n
    if not isinstance(n, OpenRatio):
        return int(n) if n.is_integer() and math.copysign(1, n) == math.copysign(1, int(n)) else None  # -0.0 stays
    whole = not any(factor.denominator > 1 or divides(atoms) for atoms, factor in n.formula)
    return OpenSize(int(n), n.formula) if whole else None


def _table(values: Sequence[int]) -> Tensor:
    """Integers that differ from few open sizes by numbers, as distances from the middle do: each size is made once."""
    apart = [_apart(n) for n in values]
    bases = {formula: base for formula, base, _ in apart}
    order = {formula: i for i, formula in enumerate(bases)}
    places = np.array([order[formula] for formula, *_ in apart])
    offsets = np.array([offset for *_, offset in apart])
    made, *others = (_signed(base).reshape(1) for base in bases.values())
    if others:
        made = apply("index", apply("concat", made, *others, axis=0), Tensor._wrap(places), pattern=("i",))
    return apply("add", made, Tensor._wrap(offsets))


def _apart(n: int) -> tuple[Formula, int, int]:
    """An integer without its constant term: the formula and the number; and that term."""
    if not isinstance(n, OpenSize):
        return (), 0, int(n)
    term = dict(n.formula).get((), Fraction(0))
    offset = int(term) if term.denominator == 1 else 0
    base = n - offset
    return base.formula, base, offset


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
