"""Indexing, gathering and assignment."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.errors import DTypeError, IndexOutOfRangeError, ShapeError
from megengine.core.sizes import OpenSize, broadcast, is_open, slice_length
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import (
    ONNX_WRITER,
    QuantRule,
    Sample,
    apply,
    define,
    no_onnx,
    public,
)
from megengine.ops.common import (
    BOOL,
    as_tensor,
    broadcast_shapes,
    cast,
    noise,
    unbroadcast,
)
from megengine.ops.selecting import places
from megengine.tensor import Tensor

_HOME = "megengine.functional.tensor"

# A pattern has one entry per axis of the input: "i" an index tensor (in order), (start, stop, step) a range.
Pattern = tuple[Any, ...]


def _key(pattern: Pattern, indices: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
    supply = iter(indices)
    return tuple([next(supply) if p == "i" else slice(*p) for p in pattern])


def _check_bounds(op: str, shape: tuple[int, ...], pattern: Pattern, indices: tuple[np.ndarray, ...]) -> None:
    axes = [axis for axis, p in enumerate(pattern) if p == "i"]
    for axis, index in zip(axes, indices, strict=True):
        n = shape[axis]
        if index.size and (index.min() < -n or index.max() >= n):
            worst = int(index.max()) if index.max() >= n else int(index.min())
            raise IndexOutOfRangeError(f"{op}: index {worst} is out of range for axis {axis} of length {n}")


def _index_infer(x: TensorSpec, *indices: TensorSpec, pattern: Pattern) -> TensorSpec:
    if len(pattern) != x.ndim:
        raise ShapeError(f"index: {counted(len(pattern), 'entry')} for shape {x.shape}; expected one per axis")
    for s in indices:
        if storage_of(s.dtype).kind not in "iu" or isinstance(s.dtype, QuantizedDType):
            raise DTypeError(f"index: an index tensor is {s.dtype}; expected integers")
    broadcast_shapes("index", *[s.shape for s in indices])
    if all(s.size for s in indices) and any(n == 0 for n, p in zip(x.shape, pattern, strict=True) if p == "i"):
        raise IndexOutOfRangeError(f"index: an axis of shape {x.shape} is empty; nothing can be taken from it")
    filled = tuple(max(n, 1) if p == "i" else n for n, p in zip(x.shape, pattern, strict=True))
    if is_open([x.shape, *[s.shape for s in indices], pattern]):
        return TensorSpec(_open_shape(x.shape, [s.shape for s in indices], pattern), x.dtype, x.device)
    probe = np.lib.stride_tricks.as_strided(np.zeros(1, bool), filled, (0,) * x.ndim)
    shape = probe[_key(pattern, tuple(np.zeros(s.shape, np.int32) for s in indices))].shape
    return TensorSpec(shape, x.dtype, x.device)


def _open_shape(shape: tuple[int, ...], indices: Sequence[tuple[int, ...]], pattern: Pattern) -> tuple[int, ...]:
    """The shape of what is taken, where sizes are open: indexed axes that stand apart come first, as NumPy has it."""
    taken = [axis for axis, part in enumerate(pattern) if part == "i"]
    pairs = [(part, n) for part, n in zip(pattern, shape, strict=True) if part != "i"]
    rest = [slice_length(a, b, c, n) for (a, b, c), n in pairs]
    side_by_side = bool(taken) and taken == list(range(taken[0], taken[-1] + 1))
    first = taken[0] if side_by_side else 0
    return (*rest[:first], *broadcast(indices), *rest[first:])


def _index(x: np.ndarray, *indices: np.ndarray, pattern: Pattern) -> np.ndarray:
    key = _key(pattern, indices)
    try:
        return x[key] if indices else np.array(x[key])  # indexing by arrays copies
    except IndexError:
        _check_bounds("index", x.shape, pattern, indices)
        raise


def _index_backward(ct: np.ndarray, *indices: np.ndarray, shape: tuple[int, ...], pattern: Pattern) -> np.ndarray:
    out = np.zeros(shape, ct.dtype)
    try:
        np.add.at(out, _key(pattern, indices), ct)
    except IndexError:
        _check_bounds("index", shape, pattern, indices)
        raise
    return out


def _index_vjp(ctx: Any, ct: Tensor) -> tuple:
    x, *indices = ctx.inputs
    grad = apply("index_backward", ct, *indices, shape=x.shape, pattern=ctx.attrs["pattern"])
    return (grad, *[None] * len(indices))


_I = np.array([[2, 0], [1, -1]], np.int32)
define(
    "index",
    _index_infer,
    _index,
    _index_vjp,
    ONNX_WRITER,
    lambda: [
        Sample((noise(3, 4), _I), {"pattern": ("i", (None, None, 1))}),
        Sample((noise(3, 4, 5), _I, np.array([0, 3], np.int32)), {"pattern": ("i", (0, 2, 1), "i")}),
    ],
    quant=QuantRule("gather"),
    by_type=True,
)
define(
    "index_backward",
    lambda ct, *indices, shape, pattern: TensorSpec(tuple(shape), ct.dtype, ct.device),
    _index_backward,
    lambda ctx, ct: (
        apply("index", ct, *ctx.inputs[1:], pattern=ctx.attrs["pattern"]),
        *[None] * (len(ctx.inputs) - 1),
    ),
    no_onnx("gradient of index"),
    lambda: [Sample((noise(2, 2, 4), _I), {"shape": (3, 4), "pattern": ("i", (None, None, 1))})],
)


def _set_infer(x: TensorSpec, value: TensorSpec, *indices: TensorSpec, pattern: Pattern) -> TensorSpec:
    target = _index_infer(x, *indices, pattern=pattern)
    if x.dtype != value.dtype:
        raise DTypeError(f"set_index: assigning {value.dtype} into {x.dtype}; expected one dtype")
    if broadcast_shapes("set_index", target.shape, value.shape) != target.shape:
        raise ShapeError(f"set_index: a value of shape {value.shape} does not fit into shape {target.shape}")
    return x


def _set(x: np.ndarray, value: np.ndarray, *indices: np.ndarray, pattern: Pattern) -> np.ndarray:
    _check_bounds("set_index", x.shape, pattern, indices)
    out = np.array(x)
    # NumPy walks negative strides backwards, but of several values for one place the last must win
    out[_key(pattern, tuple(np.ascontiguousarray(i).reshape(i.shape) for i in indices))] = value
    return out


def _set_vjp(ctx: Any, ct: Tensor) -> tuple:
    _, value, *indices = ctx.inputs
    pattern = ctx.attrs["pattern"]
    zero = Tensor._wrap(np.zeros((), storage_of(value.dtype)), None, value.device)
    dx = apply("set_index", ct, zero, *indices, pattern=pattern)
    dvalue = unbroadcast(apply("index", ct, *indices, pattern=pattern), value.shape)
    return (dx, dvalue, *[None] * len(indices))


define(
    "set_index",
    _set_infer,
    _set,
    _set_vjp,
    ONNX_WRITER,
    lambda: [Sample((noise(3, 4), noise(2, 1), np.array([2, 0], np.int32)), {"pattern": ("i", (0, 2, 1))})],
    by_type=True,
)


def _expand_items(shape: tuple[int, ...], key: Any) -> tuple[list[Any], list[int]]:
    """The items of a key, one per axis, with the ellipsis expanded, and the positions of new axes."""
    items = list(key) if isinstance(key, tuple) else [key]
    items = [np.asarray(i) if isinstance(i, (list, np.ndarray)) else i for i in items]
    used = sum(_width(i) for i in items)
    if used > len(shape):
        raise IndexOutOfRangeError(f"getitem: {counted(used, 'index')} for a tensor of shape {shape}")
    at, *more = [k for k, i in enumerate(items) if i is Ellipsis] or [len(items)]
    if more:
        raise IndexOutOfRangeError(f"getitem: an index has '...' {1 + len(more)} times; expected it once at most")
    items[at : at + 1] = [slice(None)] * (len(shape) - used)
    new = [k for k, i in enumerate(items) if i is None]
    return [i for i in items if i is not None], new


def _width(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    if isinstance(item, (Tensor, np.ndarray)) and item.dtype == bool:
        return item.ndim
    return 1


def _place(value: Any) -> int:
    """An end of a slice: an integer, or the formula of a length that values tell."""
    size = value._sizes() if isinstance(value, Tensor) else None
    return size if isinstance(size, OpenSize) else int(value)


def _plain_key(key: Any) -> tuple[Any, ...] | None:
    """A key of integers, slices, None and Ellipsis in a hashable form, slices as tuples; None for other keys."""
    marks = []
    for item in key if type(key) is tuple else (key,):
        kind = type(item)
        if kind is int or item is None or item is Ellipsis:
            marks.append(item)
        elif kind is slice:
            ends = item.start, item.stop, item.step
            marks.append(tuple(v if v is None or type(v) is int else _place(v) for v in ends))
        elif isinstance(item, numbers.Integral) and kind is not bool:
            marks.append(int(item))
        else:
            return None
    return tuple(marks)


@functools.lru_cache(maxsize=4096)
def _slices(shape: tuple[int, ...], marks: tuple[Any, ...]) -> tuple[tuple, tuple, tuple, tuple[int, ...]]:
    """Starts, stops and steps of a plain key, and the shape of the result: integers take axes away, None adds one."""
    items, new = _expand_items(shape, tuple(slice(*m) if type(m) is tuple else m for m in marks))
    bounds, lengths = [], []
    for axis, (i, n) in enumerate(zip(items, shape, strict=True)):
        if isinstance(i, slice):
            bounds.append((i.start, i.stop, 1 if i.step is None else i.step))
            lengths.append(slice_length(i.start, i.stop, i.step, n) if i.step != 0 else 0)
        elif -n <= i < n:
            bounds.append((i, i + 1 or None, 1))
            lengths.append(None)
        else:
            raise IndexOutOfRangeError(f"getitem: index {i} is out of range for axis {axis} of length {n}")
    for at in new:
        lengths.insert(at, 1)
    starts, stops, steps = zip(*bounds, strict=True) if bounds else ((), (), ())
    return starts, stops, steps, tuple(n for n in lengths if n is not None)


def _advanced(x: Tensor, items: list[Any]) -> tuple[Pattern, list[Tensor]]:
    pattern: list[Any] = []
    indices: list[Tensor] = []
    for item in items:
        if isinstance(item, slice):
            pattern.append((item.start, item.stop, item.step))
            continue
        if isinstance(item, Tensor) and isinstance(item.dtype, QuantizedDType):
            raise DTypeError(f"getitem: an index is {item.dtype}; expected integers, booleans, slices or None")
        if isinstance(item, Tensor) and storage_of(item.dtype).kind in "iu":  # its value may be known later
            indices.append(item)
            pattern.append("i")
            continue
        if isinstance(item, Tensor) and item.dtype == BOOL and item.ndim:
            rest = x.shape[len(pattern) :]
            indices += _places(item, rest[: item.ndim], rest)
            pattern += ["i"] * item.ndim
            continue
        array = item.numpy() if isinstance(item, Tensor) else np.asarray(item)
        if array.dtype == bool:
            if not array.ndim:
                raise ShapeError("getitem: a truth value stands beside other indices; expected a mask with axes")
            rest = x.shape[len(pattern) :]
            indices += _places(Tensor._wrap(array, None, x.device), rest[: array.ndim], rest)
            pattern += ["i"] * array.ndim
        elif array.dtype.kind in "iu" or array.size == 0:
            indices.append(Tensor._wrap(array.astype(np.int32), None, x.device))
            pattern.append("i")
        else:
            raise DTypeError(f"getitem: an index is {array.dtype}; expected integers, booleans, slices or None")
    return tuple(pattern), indices


def _as_truth(key: Any) -> bool | None:
    """The value of a key that is a single boolean; None for other keys."""
    if isinstance(key, (Tensor, np.ndarray)) and key.dtype == bool and key.ndim == 0:
        return bool(key.item())
    return bool(key) if isinstance(key, (bool, np.bool_)) else None


@public(home="megengine.tensor", methods=("__getitem__",), by_spec=True)
def getitem(inp: TensorLike, key: Any) -> Tensor:
    """Elements by integers, slices, None, Ellipsis, integer tensors and boolean masks, by NumPy's rules.

    A single boolean adds an axis of length 1, or of length 0 for False. A list of anything but Python integers and
    booleans is read as a tuple: `x[[[0, 1], [1, 2]]]` is `x[[0, 1], [1, 2]]`, as in MegEngine and in NumPy before 1.23.
    """
    x = as_tensor(inp)
    if type(key) is list and any(type(i) not in (int, bool) for i in key):
        key = tuple(key)
    plain = _plain_key(key)
    if plain is not None:
        starts, stops, steps, shape = _slices(x.shape, plain)
        out = apply("slice", x, starts=starts, stops=stops, steps=steps)
        return out if shape == out.shape else apply("reshape", out, shape=shape)
    if isinstance(key, Tensor) and key._dtype == BOOL and 0 < key.ndim <= x.ndim:
        axes, shape = key.ndim, x.spec.shape
        indices = _places(key, shape[:axes], shape)
        whole = ((None, None, None),) * (len(shape) - axes)
        return apply("index", x, *indices, pattern=("i",) * axes + whole)
    truth = _as_truth(key)
    if truth is not None:
        return getitem(getitem(x, None), slice(int(truth)))
    items, new = _expand_items(x.shape, key)
    x, items = _with_new_axes(x, items, new)
    pattern, indices = _advanced(x, items)
    return apply("index", x, *indices, pattern=pattern)


def _places(mask: Tensor, shape: tuple[int, ...], axes: tuple[int, ...]) -> list[Tensor]:
    """The indices of the true elements of a mask for axes of this shape, one tensor per axis."""
    if mask.shape != shape:
        raise ShapeError(f"getitem: a mask of shape {mask.shape} on axes of shape {axes}; expected equal")
    return places(mask)


def _with_new_axes(x: Tensor, items: list[Any], new: list[int]) -> tuple[Tensor, list[Any]]:
    """X with axes of length 1 where the key has None, and the key with full slices there."""
    if not new:
        return x, items
    merged: list[Any] = list(items)
    for at in new:
        merged.insert(at, None)
    shape: list[int] = []
    axis = 0
    for item in merged:
        width = _width(item)
        shape += [1] if item is None else x.shape[axis : axis + width]
        axis += width
    return apply("reshape", x, shape=tuple(shape)), [slice(None) if m is None else m for m in merged]


@public(home="megengine.tensor", in_place=("__setitem__",), by_spec=True)
def setitem(inp: Tensor, key: Any, value: TensorLike) -> Tensor:
    """`inp` with other elements. `inp[key] = value` replaces the value of `inp`; other tensors are not affected.

    A value of one element on one axis fits a single element: `x[0, 1] = [2]`. For a tensor without axes,
    `x[...] = value` also takes the shape and dtype of the value, as in MegEngine.
    """
    if key is Ellipsis and not inp.spec.shape:
        value = value if isinstance(value, Tensor) else cast(as_tensor(value, like=inp), inp.dtype)
        return apply("copy", value, device=value.device)
    value = cast(as_tensor(value, like=inp), inp.dtype)
    plain = _plain_key(key)
    if plain is not None:
        return _set_plain(inp, plain, value)
    truth = _as_truth(key)
    items, new = _expand_items(inp.shape, key if truth is None else None)
    items = [np.asarray(i) if isinstance(i, numbers.Integral) else i for i in items]
    target, items = _with_new_axes(inp, items, new)
    if truth is False:
        items[0] = slice(0)
    pattern, indices = _advanced(target, items)
    if all(part == "i" for part in pattern) and not any(i.ndim for i in indices):
        value = _single(value)
    out = apply("set_index", target, value, *indices, pattern=pattern)
    return out if out.shape == inp.shape else apply("reshape", out, shape=inp.shape)


def _single(value: Tensor) -> Tensor:
    """A value for one element without the axis of length 1 that MegEngine's numbers have."""
    return apply("reshape", value, shape=()) if value.spec.shape == (1,) else value


def _set_plain(inp: Tensor, key: tuple[Any, ...], value: Tensor) -> Tensor:
    """Setitem with a key of integers, slices, None and Ellipsis: no index is a tensor."""
    starts, stops, steps, shape = _slices(inp.shape, key)
    pattern = tuple(zip(starts, stops, steps, strict=True))
    value = value if shape else _single(value)
    if value.spec.shape:
        if broadcast_shapes("set_index", shape, value.shape) != shape:
            raise ShapeError(f"set_index: a value of shape {value.shape} does not fit into shape {shape}")
        ranges = zip(inp.shape, pattern, strict=True)
        places = tuple([slice_length(*part, n) for n, part in ranges])
        if places != shape:
            value = apply("reshape", apply("broadcast_to", value, shape=shape), shape=places)
    return apply("set_index", inp, value, pattern=pattern)
