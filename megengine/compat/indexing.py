"""Op classes that read and write parts of tensors.

`items` are `(axis, begin, end, step, index)`: which of the four are given, as tensors behind the others, in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.compat.opdef import LARGEST, declare, integers, op_class
from megengine.core.errors import ArgumentError, IndexOutOfRangeError
from megengine.core.text import counted
from megengine.tensor import Tensor

Key = tuple[Any, ...]


def _key(op: Any, x: Tensor, positions: Sequence[Tensor], numbers: Sequence[Sequence[int]] = ()) -> Key:
    """The index that `x[key]` takes: of tensors, or of `numbers` for items that have them."""
    key: list[Any] = [slice(None)] * x.ndim
    values = iter(positions)
    for k, (axis, *flags) in enumerate(op.items):
        if not -x.ndim <= axis < x.ndim:
            raise IndexOutOfRangeError(f"{op!r}: axis {axis} of a tensor with {counted(x.ndim, 'axis')}")
        fixed = numbers[k] if k < len(numbers) else (LARGEST,) * 4
        parts = [_part(op, flag, number, values) for flag, number in zip(flags, fixed, strict=True)]
        key[axis] = slice(*(_number(op, p) for p in parts[:3])) if parts[3] is None else parts[3]
    if next(values, None) is not None:
        raise ArgumentError(f"{op!r}: got {counted(len(positions), 'position')}; items name fewer")
    return tuple(key)


def _part(op: Any, flag: bool, number: int, values: Any) -> Any:
    if not flag:
        return None
    if number != LARGEST:
        return number
    value = next(values, None)
    if value is None:
        raise ArgumentError(f"{op!r}: items name more positions than there are tensors behind the first")
    return value


def _number(op: Any, value: Any) -> int | None:
    return integers(repr(op), value)[0] if isinstance(value, Tensor) else value


def _single(op: Any, x: Tensor, positions: Sequence[Tensor], numbers: Sequence[Sequence[int]] = ()) -> Key:
    """The index with single positions as numbers, which become no axes."""
    key = _key(op, x, positions, numbers)
    return tuple(_number(op, k) if isinstance(k, Tensor) and k.size == 1 else k for k in key)


def _along(x: Tensor, axis: int, part: Any) -> Tensor:
    """The positions of a slice of one axis, in a shape that broadcasts over `x`."""
    positions = part if isinstance(part, Tensor) else F.arange(x.shape[axis], dtype="int32")[part]
    return positions.reshape([-1 if k == axis else 1 for k in range(x.ndim)])


def _mesh(op: Any, x: Tensor, positions: Sequence[Tensor]) -> Key:
    """Positions of each axis, for every combination."""
    return tuple(_along(x, axis, part) for axis, part in enumerate(_key(op, x, positions)))


def _batched(op: Any, x: Tensor, positions: Sequence[Tensor]) -> Key:
    """As `_mesh`, with positions [rows, count] that differ from row to row of the first axis."""
    key = [_along(x, 0, slice(None))]
    for axis, part in enumerate(_key(op, x, positions)[1:], 1):
        rows = isinstance(part, Tensor)
        shape = [x.shape[0], *(-1 if k == axis else 1 for k in range(1, x.ndim))]
        key.append(part.reshape(shape) if rows else _along(x, axis, part))
    return tuple(key)


def _written(x: Tensor, key: Key, value: Tensor) -> Tensor:
    copy = F.copy(x)
    copy[key] = value
    return copy


def _summed(x: Tensor, key: Key, value: Tensor) -> Tensor:
    """`x` with `value` added at `key`, as often as a position stands there."""
    indices = [np.asarray(k.numpy()) if isinstance(k, Tensor) else k for k in key]
    places = Tensor(np.arange(x.size, dtype=np.int32).reshape(x.shape)[tuple(indices)])
    flat = F.broadcast_to(value, places.shape).flatten()
    one_hot = F.equal(F.expand_dims(F.arange(x.size, dtype="int32"), 1), F.expand_dims(places.flatten(), 0))
    return x + F.matmul(one_hot.astype(value.dtype), F.expand_dims(flat, 1)).reshape(x.shape)


@op_class(items=(), slice_items=())
def Subtensor(op: Any, x: Tensor, *positions: Tensor) -> Tensor:
    """`x[key]` of slices and single positions; those that are numbers may stand in `slice_items`."""
    return x[_single(op, x, positions, op.slice_items)]


@op_class(items=())
def IncrSubtensor(op: Any, x: Tensor, value: Tensor, *positions: Tensor) -> Tensor:
    """`x` with `value` added to `x[key]`."""
    key = _single(op, x, positions)
    return _written(x, key, x[key] + value)


_MESH = "every combination of positions of the axes"
_ROWS = "every combination of positions of the axes behind the first, row by row"
# name -> docstring, function of the index, function that reads or writes there
_READS: dict[str, tuple[str, Callable[..., Key], Callable[[Tensor, Key], Tensor]]] = {
    "IndexingMultiAxisVec": ("`x[key]` of slices and of positions, which go together.", _key, Tensor.__getitem__),
    "MeshIndexing": (f"The elements at {_MESH}.", _mesh, Tensor.__getitem__),
    "BatchedMeshIndexing": (f"The elements at {_ROWS}.", _batched, Tensor.__getitem__),
}
_WRITES: dict[str, tuple[str, Callable[..., Key], Callable[[Tensor, Key, Tensor], Tensor]]] = {
    "SetSubtensor": ("`x` with `x[key]` replaced.", _single, _written),
    "IndexingSetMultiAxisVec": ("`x` with `x[key]` replaced.", _key, _written),
    "IndexingIncrMultiAxisVec": ("`x` with `value` added at `x[key]`, as often as it is named.", _key, _summed),
    "SetMeshIndexing": (f"`x` with {_MESH} replaced.", _mesh, _written),
    "IncrMeshIndexing": (f"`x` with `value` added at {_MESH}, as often as it is named.", _mesh, _summed),
    "BatchedSetMeshIndexing": (f"`x` with {_ROWS} replaced.", _batched, _written),
    "BatchedIncrMeshIndexing": (f"`x` with `value` added at {_ROWS}, as often as it is named.", _batched, _summed),
}


for _name, (_doc, _place, _read) in _READS.items():
    declare(_name, _doc, lambda op, x, *at, key=_place, read=_read: read(x, key(op, x, at)), {"items": ()})
for _name, (_doc, _place, _write) in _WRITES.items():
    declare(_name, _doc, lambda op, x, v, *at, key=_place, write=_write: write(x, key(op, x, at), v), {"items": ()})


@op_class(axis=0, ndim=0)
def IndexingOneHot(op: Any, x: Tensor, index: Tensor) -> Tensor:
    """One element for each position of the other axes: `axis` stays with length 1.

    `index` has the shape of `x` without `axis`.
    """
    return F.nn.indexing_one_hot(x, index, op.axis, keepdims=True)


@op_class(axis=0, ndim=0)
def IndexingSetOneHot(op: Any, x: Tensor, index: Tensor, value: Tensor) -> Tensor:
    """`x` with one element for each position of the other axes replaced; `value` has length 1 at `axis`."""
    return F.scatter(x, op.axis, F.expand_dims(index, op.axis), value)
