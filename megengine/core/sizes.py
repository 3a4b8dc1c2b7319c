"""Sizes that follow from open axes of a graph's inputs: integers with the formula that gives them.

A graph with open axes is built at example sizes. An `OpenSize` is the integer at the example, and arithmetic on it
keeps the formula, so that `x.shape[2] // 2` holds for every size.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from typing import Any, Self

import numpy as np

from megengine.core.errors import FileFormatError, brief
from megengine.core.formulas import (
    BINARY,
    MAX_TEXT,
    Formula,
    add,
    constant_of,
    evaluated,
    extreme,
    multiply,
    names_in,
    number_formula,
    over_one,
    parsed,
    quotient,
    rounded_down,
    sign_of,
    substituted,
    text_of,
)


def _of(value: Any) -> Formula:
    return value.formula if isinstance(value, (OpenSize, OpenRatio)) else number_formula(value)


_as_examples: ContextVar[bool] = ContextVar("megengine_sizes_as_examples", default=False)


@contextmanager
def as_examples() -> Iterator[None]:
    """In the body an open size equals every integer that it is at the example.

    Elsewhere it equals only what it is at every size: a reshape that changes nothing at the example may be needed at
    another one. Rules that check whether shapes fit have to accept what fits at the example.
    """
    token = _as_examples.set(True)
    try:
        yield
    finally:
        _as_examples.reset(token)


def _whole(formula: Formula, value: int) -> int:
    """An integer or an open size."""
    constant = constant_of(formula)
    return OpenSize(value, formula) if constant is None else int(constant)


def _ratio(formula: Formula, value: float) -> float:
    constant = constant_of(formula)
    return OpenRatio(value, formula) if constant is None else float(constant)


class _Open:
    """What integers and fractions with a formula have in common."""

    formula: Formula

    def __add__(self, other: Any) -> Any:
        return _result(self, other, add, lambda a, b: a + b)

    def __radd__(self, other: Any) -> Any:
        return _result(other, self, add, lambda a, b: a + b)

    def __sub__(self, other: Any) -> Any:
        return _result(self, other, BINARY[ast.Sub], lambda a, b: a - b)

    def __rsub__(self, other: Any) -> Any:
        return _result(other, self, BINARY[ast.Sub], lambda a, b: a - b)

    def __mul__(self, other: Any) -> Any:
        return _result(self, other, multiply, lambda a, b: a * b)

    def __rmul__(self, other: Any) -> Any:
        return _result(other, self, multiply, lambda a, b: a * b)

    def __floordiv__(self, other: Any) -> Any:
        return _result(self, other, BINARY[ast.FloorDiv], lambda a, b: a // b)

    def __rfloordiv__(self, other: Any) -> Any:
        return _result(other, self, BINARY[ast.FloorDiv], lambda a, b: a // b)

    def __mod__(self, other: Any) -> Any:
        return self - other * (self // other)

    def __rmod__(self, other: Any) -> Any:
        return other - self * (other // self)

    def __truediv__(self, other: Any) -> Any:
        return _result(self, other, quotient, lambda a, b: a / b, whole=False)

    def __rtruediv__(self, other: Any) -> Any:
        return _result(other, self, quotient, lambda a, b: a / b, whole=False)

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> Any:
        return self

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.formula)

    def __repr__(self) -> str:
        return text_of(self.formula)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(text_of(self.formula), spec.replace(",", ""))  # which groups digits of numbers


def _result(a: Any, b: Any, formula: Callable[..., Formula], value: Callable[..., Any], *, whole: bool = True) -> Any:
    a, b = (n.item() if isinstance(n, np.generic) else n for n in (a, b))
    if not isinstance(a, (int, float, Fraction)) or not isinstance(b, (int, float, Fraction)):
        return NotImplemented
    fractions = not all(isinstance(n, int) for n in (a, b))
    plain = [int(n) if isinstance(n, int) else float(n) for n in (a, b)]
    made, number = formula(_of(a), _of(b)), value(*plain)
    return _ratio(made, float(number)) if fractions or not whole else _whole(made, number)


class OpenSize(_Open, int):
    """An integer that follows from open sizes, at their examples; `formula` is how."""

    def __new__(cls, example: int, formula: Formula) -> OpenSize:
        made = int.__new__(cls, example)
        made.formula = formula
        return made

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OpenSize) and other.formula == self.formula:
            return int(self) == int(other)
        return _as_examples.get() and isinstance(other, int) and int(self) == int(other)

    __hash__ = _Open.__hash__

    def __floor__(self) -> int:
        return self

    __ceil__ = __floor__

    def __reduce__(self) -> Any:
        return OpenSize, (int(self), self.formula)


class OpenRatio(_Open, float):
    """A number that follows from open sizes and may be no integer: a factor of a resize."""

    def __new__(cls, example: float, formula: Formula) -> Self:
        made = float.__new__(cls, example)
        made.formula = formula
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenRatio) and other.formula == self.formula

    __hash__ = _Open.__hash__

    def __floor__(self) -> int:
        return _whole(rounded_down(self.formula), math.floor(float(self)))

    def __ceil__(self) -> int:
        return -math.floor(-self)


def named(name: str, example: int) -> OpenSize:
    """An open axis by its name."""
    return OpenSize(example, (((name,), Fraction(1)),))


COUNT = 840  # example of a length that depends on values: many numbers divide it


def counted_size(name: str) -> OpenSize:
    """A length that depends on values, by its name."""
    return named(name, COUNT)


def name_of(size: Any) -> str | None:
    """The name of an open axis, None for other sizes."""
    if not isinstance(size, OpenSize) or len(size.formula) != 1:
        return None
    (atoms, factor), *_ = size.formula
    return atoms[0] if factor == 1 and len(atoms) == 1 and isinstance(atoms[0], str) else None


def names_of(value: Any) -> set[str]:
    """The names of the open axes that a nested value follows from."""
    if isinstance(value, (tuple, list)):
        return {name for item in value for name in names_of(item)}
    return set(names_in(value.formula)) if isinstance(value, _Open) else set()


def as_quotient(value: float, examples: Mapping[str, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """A number as what is divided by what, each a whole number times a size.

    `examples` holds those of the open axes; others have that of lengths which depend on values.
    """
    top, bottom = over_one(_of(value))
    known = {**dict.fromkeys((*names_in(top), *names_in(bottom)), COUNT), **examples}
    return _times_size(top, known), _times_size(bottom, known)


def _times_size(formula: Formula, examples: Mapping[str, int]) -> tuple[int, int]:
    """A formula of whole factors as their greatest common divisor times the rest."""
    common = math.gcd(*(int(factor) for _, factor in formula)) or 1
    rest = multiply(formula, number_formula(Fraction(1, common)))
    return common, _whole(rest, int(evaluated(rest, examples)))


def largest(a: Any, b: Any) -> Any:
    """The larger of two sizes, at every size."""
    return _extreme("largest", a, b, max)


def least(a: Any, b: Any) -> Any:
    """The smaller of two sizes, at every size."""
    return _extreme("least", a, b, min)


def _extreme(name: str, a: Any, b: Any, of: Callable[..., Any]) -> Any:
    if not is_open((a, b)):
        return of(a, b)
    made, value = extreme(name, _of(a), _of(b)), of(closed(a), closed(b))
    return _ratio(made, float(value)) if isinstance(a, float) or isinstance(b, float) else _whole(made, value)


_PLAIN = {int, float, bool, str, type(None)}  # most of what attributes hold


def is_open(value: Any) -> bool:
    """Whether an open size stands anywhere in a nested value."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (tuple, list)):
        return isinstance(value, _Open)
    return any(type(item) not in _PLAIN and is_open(item) for item in value)


def at(value: Any, sizes: Mapping[str, int]) -> Any:
    """A nested value with its open sizes at these sizes; lengths that depend on values stay open if not given."""
    if isinstance(value, OpenSize):
        if left := dict.fromkeys(set(names_in(value.formula)) - sizes.keys(), COUNT):
            given = {name: number_formula(size) for name, size in sizes.items()}
            return _whole(substituted(value.formula, given), int(evaluated(value.formula, {**sizes, **left})))
        exact = evaluated(value.formula, sizes)
        assert exact.denominator == 1, value
        return int(exact)
    if isinstance(value, OpenRatio):
        return float(evaluated(value.formula, sizes))
    if isinstance(value, (tuple, list)) and is_open(value):
        return type(value)([at(item, sizes) for item in value])
    if isinstance(value, dict):
        return {key: at(item, sizes) for key, item in value.items()}
    return value


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A nested value with other names for some of its open sizes."""
    if isinstance(value, (OpenSize, OpenRatio)):
        formulas: dict[str, Formula] = {old: (((new,), Fraction(1)),) for old, new in names.items()}
        formula = substituted(value.formula, formulas)
        return OpenSize(int(value), formula) if isinstance(value, OpenSize) else OpenRatio(float(value), formula)
    if isinstance(value, (tuple, list)) and is_open(value):
        return type(value)([renamed(item, names) for item in value])
    if isinstance(value, dict):
        return {key: renamed(item, names) for key, item in value.items()}
    return value


def closed(value: Any) -> Any:
    """A nested value with its open sizes at the example, as plain integers."""
    if isinstance(value, OpenSize):
        return int(value)
    if isinstance(value, OpenRatio):
        return float(value)
    if isinstance(value, (tuple, list)) and is_open(value):
        return type(value)([closed(item) for item in value])
    return {key: closed(item) for key, item in value.items()} if isinstance(value, dict) else value


def fits(shape: Iterable[int], stated: Iterable[int]) -> bool:
    """Whether a shape is a stated one, up to its open sizes."""
    shape, stated = tuple(shape), tuple(stated)
    return len(shape) == len(stated) and all(is_open(n) or n == m for m, n in zip(shape, stated, strict=True))


def from_start(place: int, length: int) -> int:
    """A place that counts from the end of a length where it is negative."""
    if not isinstance(place, OpenSize):
        return place + length if place < 0 else place
    sign = sign_of(place.formula)
    if sign is None:
        return place + length * least(1, largest(0, -place))
    return place + length if sign < 0 else place


def is_below(a: float, b: float) -> bool | None:
    """Whether a number is below another one at every size; None if that depends on the size."""
    sign = sign_of(add(_of(a), _of(b), -1))
    return None if sign is None else sign < 0


def sign_beside(value: float, lengths: Iterable[int]) -> int | None:
    """1 for a positive number, 0 for one that is never negative, -1 for a negative one; None if that is not known.

    The answer holds at the sizes at which all of `lengths` are at least 1.
    """
    formula = _of(value)
    if (sign := sign_of(formula)) is not None:
        return sign
    for length in map(_of, lengths):
        if (sign := sign_of(add(add(formula, length, -1), number_formula(1)))) in (0, 1):  # at least length - 1
            return sign
        if sign_of(add(multiply(formula, number_formula(-1)), length, -1)) in (0, 1):  # at most -length
            return -1
    return None


def equals(a: float, b: float) -> bool | None:
    """Whether two numbers are equal at every size (or at none); None if that depends on the size."""
    difference = add(_of(a), _of(b), -1)
    return True if not difference else False if sign_of(difference) in (1, -1) else None


def truncated(value: Any) -> Any:
    """A number without its fraction, as casts to integers and their division give it."""
    if not is_open(value):
        return math.trunc(value)
    sign = sign_of(_of(value))
    if sign is not None:
        return -math.floor(-value) if sign < 0 else math.floor(value)
    return math.floor(largest(value, 0)) - math.floor(largest(-value, 0))


def whole(value: Any) -> int:
    """An integer, open ones as they are."""
    return value if isinstance(value, OpenSize) else int(value)


def range_length(start: int, stop: int, step: int) -> int:
    """How many places there are from `start` on before `stop`."""
    if not is_open((start, stop)):
        return len(range(start, stop, step))
    count = (stop - start + step - 1) // step if step > 0 else (start - stop - step - 1) // -step
    return largest(0, count)


def slice_bounds(start: int | None, stop: int | None, step: int | None, length: int) -> tuple[int, int, int]:
    """`slice(start, stop, step).indices(length)`, for open sizes too."""
    step = 1 if step is None else step
    if not is_open((start, stop, length)):
        return slice(start, stop, step).indices(length)
    low, high = (0, length) if step > 0 else (-1, length - 1)

    def inside(place: int | None, default: int) -> int:
        if place is None:
            return default
        if step > 0 and (not _of(place) or _of(place) == _of(length)):  # no length is negative
            return place
        return least(largest(from_start(place, length), low), high)

    first, last = (low, high) if step > 0 else (high, low)
    return inside(start, first), inside(stop, last), step


def slice_length(start: int | None, stop: int | None, step: int | None, length: int) -> int:
    """How many of `length` places a slice has; the whole axis keeps its formula."""
    first, last, by = slice_bounds(start, stop, step, length)
    whole_axis = is_open(length) and by == 1 and not _of(first) and _of(last) == _of(length)
    return length if whole_axis else range_length(first, last, by)


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape to which shapes that fit at the example broadcast; an open size is not taken for 1."""
    shapes = list(shapes)
    rank = max(map(len, shapes), default=0)
    made = []
    for axis in range(-rank, 0):
        sizes = [shape[axis] for shape in shapes if len(shape) >= -axis]
        plain = [n for n in sizes if not isinstance(n, OpenSize) and n != 1]
        open_ones = sorted((n for n in sizes if isinstance(n, OpenSize)), key=lambda n: (int(n) == 1, len(str(n))))
        made.append(plain[0] if plain else open_ones[0] if open_ones else 1)
    return tuple(made)


def parse_size(text: str, example: int) -> OpenSize:
    """The size of a text that `str` of one gave. Raises FileFormatError for any other text."""
    try:
        made = parsed(ast.parse(text[:MAX_TEXT], mode="eval").body)
    except (SyntaxError, ValueError, TypeError, ZeroDivisionError, RecursionError, MemoryError):
        raise FileFormatError(f"{brief(text)} is no formula of a size") from None
    return OpenSize(example, made)
