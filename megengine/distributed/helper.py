"""Helpers of training loops for operations over all processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from megengine import device
from megengine.core import absent
from megengine.core.errors import OptionError, nearest
from megengine.tensor import Tensor

__all__ = [
    "AllreduceCallback",
    "bcast_list_",
    "get_device_count_by_fork",
    "get_offsets",
    "make_allreduce_cb",
    "param_pack_concat",
    "param_pack_split",
    "synchronized",
]


def bcast_list_(inps: Iterable[Tensor], group: Any = None) -> None:
    """Nothing: it gives every process the values of the first, and there is one process."""


def get_device_count_by_fork(device_type: str) -> int:
    """Number of devices of a kind, as `megengine.get_device_count`."""
    return device.get_device_count(device_type)


def make_allreduce_cb(reduce_method: str = "mean", group: Any = None, backend: Any = None) -> Callable[..., Tensor]:
    """A callback for `GradManager.attach` that joins gradients over all processes: with one, it changes nothing."""
    if reduce_method not in ("mean", "sum"):
        hint = nearest(str(reduce_method), ("mean", "sum"))
        raise OptionError(f"make_allreduce_cb: reduce_method is {reduce_method!r}; expected 'mean' or 'sum'{hint}")
    return lambda tensor, grad: grad


def synchronized(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator that changes nothing: there are no other processes to wait for."""
    return func


def get_offsets(shapes: Iterable[Sequence[int]]) -> list[int]:
    """The first and last position of each tensor of these shapes where they stand one after another.

    Example:
        >>> get_offsets([(2, 2), (3,)])
        [0, 4, 4, 7]
    """
    offsets, at = [], 0
    for shape in shapes:
        offsets += [at, at := at + math.prod(shape)]
    return offsets


def param_pack_concat(inps: Sequence[Tensor], offsets: Tensor, offsets_val: Sequence[int]) -> Tensor:
    """Tensors flattened into one, at the positions of `offsets_val` (see `get_offsets`); gaps are zeros."""
    packed = Tensor(np.zeros(offsets_val[-1]), inps[0].dtype, inps[0].device)
    for x, start, stop in zip(inps, offsets_val[::2], offsets_val[1::2], strict=True):
        packed[start:stop] = x.flatten()
    return packed


def param_pack_split(inp: Tensor, offsets: Sequence[int], shapes: Sequence[Sequence[int]]) -> tuple[Tensor, ...]:
    """The inverse of `param_pack_concat`: one tensor for each of `shapes`."""
    ends = zip(offsets[::2], offsets[1::2], shapes, strict=True)
    return tuple(inp[start:stop].reshape(tuple(shape)) for start, stop, shape in ends)


__getattr__ = partial(absent.part_or_error, __name__)


AllreduceCallback = make_allreduce_cb
