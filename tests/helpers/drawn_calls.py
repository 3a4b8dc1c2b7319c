"""Calls drawn by hypothesis, as plain data: they travel to the process that makes them, are shrunk, and print as the
Python that makes them again.

A drawn call starts from a right one (a `Tree`, see call_subjects.py), since calls of nothing but noise stop at the
first check: extents are replaced wherever they occur, in shapes and options alike, so that most calls stay
consistent; then a few places are given something else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

FLOATS = ["float32", "float16", "bfloat16", "float64"]
INTEGERS = ["int32", "int64", "int8", "int16", "uint8", "uint16", "uint32", "uint64", "bool"]
QUANTIZED = ["qint8", "quint8", "qint32", "qint4", "quint4", "qint16", "qint8_narrow", "qint1", "qint8/0"]
DTYPES = [*FLOATS, *INTEGERS, *QUANTIZED, "complex64"]
LAYOUTS = ["plain", "transposed", "reversed", "gaps", "last", "repeated", "part"]
VALUES = ["given", "zeros", "ones", "normal", "counting", "negative", "big", "tiny", "nan", "inf", "extreme"]
KINDS = ["Tensor", "Parameter", "ndarray", "list", "elsewhere", "tuple", "number", "scalar"]
SCALARS = ["int64", "int32", "uint8", "float32", "float64", "float16", "bool"]
EXTENTS = [1, 2, 3, 0, 4, 5, 7, 8, 13, 16, 17, 31, 33, 64, 65, 129]
VAST = [1 << 31, (1 << 31) - 1, 1 << 16, 1 << 40]
DERIVATIVES = ["gradient", "second", "jvp"]
MODES = ["call", "again", *DERIVATIVES]
HUGE = (1 << 31, (1 << 31) - 1, 1 << 32, 1 << 40, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 70)
NUMBERS = [0, 1, -1, 2, 3, -2, 5, 7, -7, 16, 100, 0.5, -0.5, 1.5, 0.0, -0.0, float("nan"), float("inf"), -float("inf")]
NUMBERS += [1e-30, 1e30, -1e30, 1e300, *HUGE, *(-n for n in HUGE)]
ODDITIES = ["object", "function", "class", "array", "complex", "bytes", "set", "iterable"]


@dataclass(frozen=True)
class Array:
    """A tensor to be made: `values` "given" are those of the place of that number in the right call, as often as
    needed. A `repeated` layout has strides of zero along its first axis. Kinds beside those of tensors are an array, a
    list or a tuple of numbers, the first value as Python's `number`, and as NumPy's `scalar`.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    layout: str = "plain"
    values: str = "normal"
    kind: str = "Tensor"
    place: int = -1


@dataclass(frozen=True)
class Odd:
    """What no function expects, by name; or what stands at a place of the right call and is no plain data."""

    name: str
    place: int = -1


@dataclass(frozen=True)
class Scalar:
    """A number of a NumPy type in place of one of Python's."""

    value: float
    dtype: str


@dataclass(frozen=True)
class Left:
    """An argument that is left out: its default holds."""


@dataclass(frozen=True)
class Key:
    """A slice, which old Pythons do not hash."""

    start: Any = None
    stop: Any = None
    step: Any = None


@dataclass(frozen=True)
class Drawn:
    """A call: of what, with what, and what is done beside calling it.

    With ", moved" or ", moved back" behind `mode`, tensors that have a gradient are a little beside their values.
    """

    subject: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    mode: str = "call"


@dataclass(frozen=True)
class Tree:
    """The arguments of a right call as data; `names` are the parameters that the arguments by place belong to."""

    subject: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...] = ()


# ---------------------------------------------------------------- what is drawn


class Tape:
    """Bytes that hypothesis drew, as choices: to draw them all at once takes a tenth of the time. Zeros, which it
    shrinks to and which stand behind the end, choose the first of the options.
    """

    def __init__(self, data: bytes) -> None:
        self._bytes = iter(data)

    def below(self, n: int) -> int:
        """A number from 0 to n - 1; n is at most 256."""
        return next(self._bytes, 0) % n

    def pick(self, options: Sequence[Any]) -> Any:
        """One of them."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True that often; shrinks to False."""
        return self.below(256) * 100 >= (100 - percent) * 256


def _extent(tape: Tape) -> int:
    return tape.pick(EXTENTS[:9] if tape.chance(80) else EXTENTS)


def any_shape(tape: Tape) -> tuple[int, ...]:
    """0 to 7 axes, of at most some ten thousand elements; where there are none, one axis may be of any length."""
    ndim = tape.pick([2, 1, 0, 3, 4, 4, 5, 6, 7])
    few = EXTENTS[:4] if ndim > 4 else EXTENTS[:9]
    shape = tuple(tape.pick(few) for _ in range(ndim))
    if 0 in shape and max(shape) > 1 and tape.chance(20):
        at = shape.index(max(shape))
        shape = (*shape[:at], tape.pick(VAST), *shape[at + 1 :])
    return shape


def any_array(tape: Tape, like: Array | None = None) -> Array:
    """Any shape, dtype and layout."""
    shape = like.shape if like is not None and tape.chance(50) else any_shape(tape)
    dtype = tape.pick(DTYPES) if tape.chance(50) else (like.dtype if like is not None else "float32")
    kind = tape.pick(KINDS) if tape.chance(15) else "Tensor"
    return Array(shape, dtype, tape.pick(LAYOUTS), tape.pick(VALUES[1:]), kind)


def any_key(tape: Tape, shape: tuple[int, ...]) -> Any:
    """What may stand in brackets behind a tensor."""

    def place(extent: int) -> Any:
        return tape.below(2 * extent + 3) - extent - 1 if tape.chance(90) else tape.pick([*HUGE, -(1 << 70), 1.5])

    def one(extent: int) -> Any:
        kind = tape.below(10)
        if kind < 3:
            return place(extent)
        if kind < 6:
            step = tape.pick([None, 1, -1, 2, -2, 3, 0, 100, 1 << 40])
            start, stop = (place(extent) if tape.chance(60) else None for _ in range(2))
            return Key(start, stop, step)
        if kind == 6:
            return tape.pick([Ellipsis, None, True, False, "a", (), []])
        if kind == 7:
            return tuple(place(extent) for _ in range(tape.below(4)))
        some = any_shape(tape)[:3]
        if kind == 8:
            return Array(some, tape.pick(["int32", "int64", "int8", "uint8", "float32"]), values="counting")
        return Array(some if tape.chance(30) else shape[:2], "bool", tape.pick(LAYOUTS), "normal")

    count = tape.below(len(shape) + 2)
    keys = tuple(one(shape[i] if i < len(shape) else 2) for i in range(count))
    return keys[0] if len(keys) == 1 and tape.chance(60) else keys


def any_value(tape: Tape, texts: list[str]) -> Any:
    """Anything."""
    kind = tape.below(10)
    if kind < 2:
        return tape.pick(NUMBERS)
    if kind == 2:
        return tape.pick([None, True, False, (), [], "", {}])
    if kind < 5:
        return any_array(tape)
    if kind == 5:
        return tape.pick(texts)
    if kind == 6:
        return Odd(tape.pick(ODDITIES))
    if kind == 7:
        return [any_array(tape) for _ in range(tape.below(4))]
    return tuple(tape.pick(NUMBERS) for _ in range(tape.below(5)))


# ---------------------------------------------------------------- changing a right call


def leaves(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """(path, value) of everything in (args, kwargs); a tuple or list among the arguments counts as a place too."""
    if isinstance(tree, dict):
        return [leaf for k, v in tree.items() for leaf in leaves(v, (*path, k))]
    if isinstance(tree, (tuple, list)):
        inner = [leaf for i, v in enumerate(tree) for leaf in leaves(v, (*path, i))]
        return [(path, tree), *inner] if len(path) > 1 else inner
    return [(path, tree)]


def replaced(tree: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A tree with another value at a path."""
    if not path:
        return value
    if isinstance(tree, dict):
        return {k: replaced(v, path[1:], value) if k == path[0] else v for k, v in tree.items()}
    return type(tree)(replaced(v, path[1:], value) if i == path[0] else v for i, v in enumerate(tree))


def _mapped(tree: Any, function: Any) -> Any:
    if isinstance(tree, dict):
        return {k: _mapped(v, function) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        return type(tree)(_mapped(v, function) for v in tree)
    return function(tree)


def _other_extents(tape: Tape, tree: Any) -> Any:
    """Some numbers replaced wherever they occur: extents in shapes, and options equal to them."""
    found = {n for _, leaf in leaves(tree) if isinstance(leaf, Array) for n in leaf.shape}
    found |= {leaf for _, leaf in leaves(tree) if type(leaf) is int and 0 < leaf < 100}
    if not found:
        return tree
    names = sorted(found, reverse=True)
    new = {tape.pick(names): _extent(tape) for _ in range(1 + tape.below(3))}
    if any(isinstance(leaf, Array) and len(leaf.shape) > 4 for _, leaf in leaves(tree)):
        new = {old: min(n, 8) for old, n in new.items()}  # volumes take long
    options = tape.chance(60)

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Array):
            return Array(tuple(new.get(n, n) for n in leaf.shape), *[getattr(leaf, f) for f in _FIELDS])
        return new.get(leaf, leaf) if options and type(leaf) is int else leaf

    changed = _mapped(tree, change)
    sizes = [math.prod(leaf.shape) for _, leaf in leaves(changed) if isinstance(leaf, Array)]
    return changed if max(sizes, default=0) <= MOST else tree


MOST = 200_000  # elements of a tensor
_FIELDS = ("dtype", "layout", "values", "kind", "place")


def _with(array: Array, **changes: Any) -> Array:
    return Array(**{"shape": array.shape, **{f: getattr(array, f) for f in _FIELDS}, **changes})


def _other_axes(tape: Tape, array: Array) -> Array:
    """An axis more or fewer, or one of another extent."""
    shape = list(array.shape)
    at = tape.below(len(shape) + 1)
    kind = tape.below(3)
    if kind == 0 or at == len(shape):
        shape.insert(at, _extent(tape))
    elif kind == 1:
        shape[at] = _extent(tape)
    else:
        del shape[at]
    return _with(array, shape=tuple(shape))


def _instead(tape: Tape, old: Any, texts: list[str]) -> Any:
    """What to put in place of a value; mostly something of its kind."""
    if tape.chance(15):
        return any_value(tape, texts)
    if isinstance(old, Array):
        kind = tape.below(6)
        if kind == 0:
            return _with(old, values=tape.pick(VALUES))
        if kind == 1:
            return _with(old, dtype=tape.pick(DTYPES))
        if kind in (2, 3):
            return _other_axes(tape, old)
        return _with(old, kind=tape.pick(KINDS)) if kind == 4 else any_array(tape, old)
    if isinstance(old, (int, float)) and abs(old) < 1 << 31 and tape.chance(15):
        return Scalar(old, tape.pick(SCALARS))
    if isinstance(old, bool):
        return not old
    if isinstance(old, (int, float)):
        near = [old + 1, old - 1, -old, old * 2, 0]
        return tape.pick(near) if tape.chance(40) else tape.pick(NUMBERS)
    if isinstance(old, str):
        return tape.pick(texts)
    if isinstance(old, (tuple, list)):
        some = [tape.pick(NUMBERS[:10]) for _ in range(tape.below(5))]
        return tape.pick([old[:-1], (*old, *old[-1:]), old[::-1], tuple(some), list(some), *old[:1]])
    if isinstance(old, (Left, Odd)) or old is None:
        return any_value(tape, texts)
    return tape.pick(NUMBERS[:12])


def _of_other_dtype(tape: Tape, tree: Any) -> Any:
    """Every float tensor of another dtype: of reals, quantized, or of integers."""
    dtype = tape.pick(tape.pick([FLOATS, FLOATS, QUANTIZED, INTEGERS]))
    return _mapped(tree, lambda x: _with(x, dtype=dtype) if isinstance(x, Array) and x.dtype == "float32" else x)


def _of_other_layout(tape: Tape, tree: Any) -> Any:
    """Each tensor with its own strides."""
    return _mapped(tree, lambda x: _with(x, layout=tape.pick(LAYOUTS)) if isinstance(x, Array) else x)


def _of_other_kinds(tape: Tape, tree: Any) -> Any:
    """Lists, tuples, arrays and numbers for some of the tensors, NumPy's numbers for some of Python's."""

    def change(leaf: Any) -> Any:
        if isinstance(leaf, Array):
            return _with(leaf, kind=tape.pick(KINDS)) if tape.chance(40) else leaf
        if type(leaf) in (int, float) and abs(leaf) < 1 << 31 and tape.chance(40):
            return Scalar(leaf, tape.pick(SCALARS))
        return leaf

    return _mapped(tree, change)


def _arguments(tape: Tape, tree: Tree, texts: list[str]) -> tuple[Any, Any]:
    found: Any = tree.args, tree.kwargs
    if tape.chance(75):
        found = _other_extents(tape, found)
    if tape.chance(50):
        found = _of_other_layout(tape, found)
    if tape.chance(25):
        found = _of_other_dtype(tape, found)
    if tape.chance(15):
        found = _of_other_kinds(tape, found)
    for _ in range(tape.pick([0, 0, 1, 1, 1, 2, 3])):
        places = leaves(found)
        if not places:
            break
        path, old = places[tape.below(len(places))]
        found = replaced(found, path, _instead(tape, old, texts))
    return found


def _other_places(tape: Tape, names: tuple[str, ...], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The last arguments by name instead of by place, or the first ones by name by place."""
    if names and tape.chance(50):
        kept = tape.below(len(names) + 1)
        named = dict(zip(names[kept:], args[kept:], strict=False))
        return args[:kept], {**named, **kwargs}
    count = tape.below(len(kwargs) + 1)
    return (*args, *list(kwargs.values())[:count]), dict(list(kwargs.items())[count:])


def calls(trees: list[Tree], texts: list[str]) -> st.SearchStrategy[Drawn]:
    """Calls made of the right ones of a subject."""
    return st.binary(min_size=100, max_size=100).map(lambda data: _call(Tape(data), trees, texts))


def _call(tape: Tape, trees: list[Tree], texts: list[str]) -> Drawn:
    tree = tape.pick(trees)
    if tree.subject.partition("/")[0] in ("__getitem__", "__setitem__") and tape.chance(85):
        array = any_array(tape)
        args = (array, any_key(tape, array.shape))
        if tree.subject.startswith("__setitem__"):
            args = (*args, any_value(tape, texts) if tape.chance(40) else tape.pick(NUMBERS[:6]))
        return Drawn(tree.subject, args, {}, tape.pick(MODES))
    args, kwargs = _arguments(tape, tree, texts)
    if tape.chance(15):
        args, kwargs = _other_places(tape, tree.names, args, kwargs)
    return Drawn(tree.subject, tuple(args), kwargs, tape.pick(MODES) if tape.chance(40) else "call")
