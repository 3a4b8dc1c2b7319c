"""What training loops call around the operations over all processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from megengine import device
from megengine.core import absent
from megengine.core.errors import OptionError, nearest
from megengine.tensor import Tensor


def bcast_list_(inps: Iterable[Tensor], group: Any = None) -> None:
    """Give every process the first one's values; a single process has them."""


def get_device_count_by_fork(device_type: str) -> int:
    """Number of devices of a kind, as `megengine.get_device_count`."""
    return device.get_device_count(device_type)


def make_allreduce_cb(reduce_method: str = "mean", group: Any = None, backend: Any = None) -> Callable[..., Tensor]:
    """A callback for `GradManager.attach` that joins gradients over all processes: with one, it changes nothing."""
    if reduce_method not in ("mean", "sum"):
        raise OptionError(
            f"make_allreduce_cb: reduce_method is {reduce_method!r}; expected 'mean' or 'sum'"
            f"{nearest(str(reduce_method), ('mean', 'sum'))}"
        )
    return lambda tensor, grad: grad


def synchronized(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: the other processes, of which there are none, are waited for before the call."""
    return func


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)


AllreduceCallback = make_allreduce_cb
