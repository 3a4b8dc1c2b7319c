"""Helpers of training loops for operations over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from megengine import device
from megengine.core import absent
from megengine.core.errors import OptionError, nearest
from megengine.tensor import Tensor

__all__ = ["AllreduceCallback", "bcast_list_", "get_device_count_by_fork", "make_allreduce_cb", "synchronized"]


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


__getattr__ = partial(absent.part_or_error, __name__)


AllreduceCallback = make_allreduce_cb
