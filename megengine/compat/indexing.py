"""Op classes that read and write parts of tensors.

`items` are `(axis, begin, end, step, index)`: which of the four are given, as tensors behind the others, in this order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.compat.opdef import LARGEST, OpDef, integers
from megengine.core.errors import ArgumentError, IndexOutOfRangeError
from megengine.core.text import counted
from megengine.tensor import Tensor


class _Items(OpDef):
    items: Sequence[Any] = ()

    def key(self, x: Tensor, given: Sequence[Tensor], *, numbers: Sequence[Sequence[int]] = ()) -> tuple[Any, ...]:
        """The index that `x[key]` takes."""
        key: list[Any] = [slice(None)] * x.ndim
        values = iter(given)
        for k, (axis, *flags) in enumerate(self.items):
            if not -x.ndim <= axis < x.ndim:
                raise IndexOutOfRangeError(f"{self!r}: axis {axis} of a tensor with {counted(x.ndim, 'axis')}")
            fixed = numbers[k] if k < len(numbers) else (LARGEST,) * 4
            parts = [self._part(flag, number, values) for flag, number in zip(flags, fixed, strict=True)]
            key[axis] = slice(*map(self._number, parts[:3])) if parts[3] is None else parts[3]
        if next(values, None) is not None:
            raise ArgumentError(f"{self!r}: got {counted(len(given), 'position')}; items name fewer")
        return tuple(key)

    def _part(self, flag: bool, number: int, values: Any) -> Any:
        if not flag:
            return None
        if number != LARGEST:
            return number
        value = next(values, None)
        if value is None:
            raise ArgumentError(f"{self!r}: items name more positions than there are tensors behind the first")
        return value

    def _number(self, value: Any) -> int | None:
        return integers(repr(self), value)[0] if isinstance(value, Tensor) else value

    def scalars(self, key: tuple[Any, ...]) -> tuple[Any, ...]:
        """The key with single positions as numbers."""
        return tuple(self._number(k) if isinstance(k, Tensor) and k.size == 1 else k for k in key)


def _written(x: Tensor, key: tuple[Any, ...], value: Tensor) -> Tensor:
    made = F.copy(x)
    made[key] = value
    return made


class Subtensor(_Items):
    """`x[key]` of slices and single positions; those that are numbers may stand in `slice_items`."""

    slice_items: Sequence[Any] = ()

    def run(self, x: Tensor, *given: Tensor) -> Tensor:
        """Positions become no axes."""
        return x[self.scalars(self.key(x, given, numbers=self.slice_items))]


class SetSubtensor(_Items):
    """`x` with `x[key]` replaced."""

    def run(self, x: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        """Of the shape of `x`."""
        return _written(x, self.scalars(self.key(x, given)), value)


class IncrSubtensor(_Items):
    """`x` with `value` added to `x[key]`."""

    def run(self, x: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        """Of the shape of `x`."""
        key = self.scalars(self.key(x, given))
        return _written(x, key, x[key] + value)


def _summed(x: Tensor, key: tuple[Any, ...], value: Tensor) -> Tensor:
    """`x` with `value` added at `key`, as often as a position stands there."""
    indices = [np.asarray(k.numpy()) if isinstance(k, Tensor) else k for k in key]
    places = Tensor(np.arange(x.size, dtype=np.int32).reshape(x.shape)[tuple(indices)])
    flat = F.broadcast_to(value, places.shape).flatten()
    one_hot = F.equal(F.expand_dims(F.arange(x.size, dtype="int32"), 1), F.expand_dims(places.flatten(), 0))
    return x + F.matmul(one_hot.astype(value.dtype), F.expand_dims(flat, 1)).reshape(x.shape)


class IndexingMultiAxisVec(_Items):
    """`x[key]` of slices and of tensors of positions, which go together."""

    def run(self, x: Tensor, *given: Tensor) -> Tensor:
        """The axes of the positions stand where the first of them does."""
        return _taken(x, self.key(x, given))


def _taken(x: Tensor, key: tuple[Any, ...]) -> Tensor:
    axes = [k for k, part in enumerate(key) if not isinstance(part, slice)]
    out = x[key]
    if len(axes) < 2 or axes == list(range(axes[0], axes[-1] + 1)) or axes[0] == 0:
        return out
    ndim = np.broadcast_shapes(*(key[k].shape for k in axes)).__len__()
    return F.transpose(out, [*range(ndim, ndim + axes[0]), *range(ndim), *range(ndim + axes[0], out.ndim)])


class IndexingSetMultiAxisVec(_Items):
    """`x` with `x[key]` replaced."""

    def run(self, x: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        """Of the shape of `x`."""
        return _written(x, self.key(x, given), value)


class IndexingIncrMultiAxisVec(_Items):
    """`x` with `value` added at `x[key]`, as often as a position stands there."""

    def run(self, x: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        """Of the shape of `x`."""
        return _summed(x, self.key(x, given), value)


class _Mesh(_Items):
    def mesh(self, x: Tensor, given: Sequence[Tensor]) -> tuple[Any, ...]:
        """Positions of each axis, for every combination."""
        key = self.key(x, given)
        flat = [p if isinstance(p, Tensor) else F.arange(x.shape[k], dtype="int32")[p] for k, p in enumerate(key)]
        return tuple(p.reshape([-1 if j == k else 1 for j in range(x.ndim)]) for k, p in enumerate(flat))


class MeshIndexing(_Mesh):
    """Every combination of positions of the axes."""

    def run(self, x: Tensor, *given: Tensor) -> Tensor:
        """As many axes as `x`."""
        return x[self.mesh(x, given)]


class SetMeshIndexing(_Mesh):
    """`x` with every combination of positions replaced."""

    def run(self, x: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        """Of the shape of `x`."""
        return _written(x, self.mesh(x, given), value)


class IncrMeshIndexing(_Mesh):
    """`x` with `value` added at every combination of positions."""

    def run(self, x: Tensor, value: Tensor, *given: Tensor) -> Tensor:
        """Of the shape of `x`."""
        return _summed(x, self.mesh(x, given), value)


class _BatchedMesh(_Mesh):
    def mesh(self, x: Tensor, given: Sequence[Tensor]) -> tuple[Any, ...]:
        """Positions that differ from row to row of the first axis: [rows, count]."""
        key = self.key(x, given)
        rows = F.arange(x.shape[0], dtype="int32").reshape([-1] + [1] * (x.ndim - 1))
        found = [rows]
        for k, part in enumerate(key[1:], 1):
            if isinstance(part, Tensor):
                found.append(part.reshape([x.shape[0], *(-1 if j == k else 1 for j in range(1, x.ndim))]))
            else:
                every = F.arange(x.shape[k], dtype="int32")[part]
                found.append(every.reshape([-1 if j == k else 1 for j in range(x.ndim)]))
        return tuple(found)


class BatchedMeshIndexing(_BatchedMesh, MeshIndexing):
    """Every combination of positions of the axes behind the first, row by row."""


class BatchedSetMeshIndexing(_BatchedMesh, SetMeshIndexing):
    """`x` with every combination of positions replaced, row by row."""


class BatchedIncrMeshIndexing(_BatchedMesh, IncrMeshIndexing):
    """`x` with `value` added at every combination of positions, row by row."""


class IndexingOneHot(OpDef):
    """One element for each position of the other axes: `axis` stays with length 1."""

    axis: int = 0
    ndim: int = 0

    def run(self, x: Tensor, index: Tensor) -> Tensor:
        """`index` has the shape of `x` without `axis`."""
        return F.nn.indexing_one_hot(x, index, self.axis, keepdims=True)


class IndexingSetOneHot(OpDef):
    """`x` with one element for each position of the other axes replaced."""

    axis: int = 0
    ndim: int = 0

    def run(self, x: Tensor, index: Tensor, value: Tensor) -> Tensor:
        """`value` has length 1 at `axis`."""
        return F.scatter(x, self.axis, F.expand_dims(index, self.axis), value)
