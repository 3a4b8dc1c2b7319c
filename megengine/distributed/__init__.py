"""Training in one process, under the names that scripts for many processes use: rank 0 of a world of 1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from megengine.core import absent
from megengine.core.errors import DeviceError
from megengine.distributed import functional, helper
from megengine.distributed.helper import bcast_list_, make_allreduce_cb, synchronized
from megengine.distributed.launcher import launcher
from megengine.tensor import Tensor


class Group:
    """The processes that work together: here this one."""

    size, rank, ranks, key = 1, 0, (0,), "WORLD"
    is_single_rank = True


WORLD = Group()


def get_rank() -> int:
    """0: this process is the only one."""
    return 0


def get_world_size() -> int:
    """1: this process is the only one."""
    return 1


def is_distributed() -> bool:
    """False: there is one process."""
    return False


def group_barrier(group: Group = WORLD) -> None:
    """Nothing: there are no other processes to wait for."""


def init_process_group(
    master_ip: str = "localhost", port: int = 0, world_size: int = 1, rank: int = 0, device: int = 0, **options: Any
) -> None:
    """Nothing to do for one process. Raises DeviceError for several."""
    if world_size != 1 or rank != 0:
        raise DeviceError(f"init_process_group: world_size={world_size}, rank={rank}; there is one process here")


def bcast_params(params: Iterable[Tensor]) -> None:
    """Nothing: the one process has the parameters."""


def group_start() -> None:
    """Nothing: one process sends no messages."""


def group_end() -> None:
    """Nothing: one process sends no messages."""


@contextmanager
def override_backend(new_backend: str) -> Iterator[None]:
    """Nothing: one process sends no messages, so the body runs as it would."""
    yield


__getattr__ = partial(absent.part_or_error, __name__)


__all__ = [
    "WORLD",
    "Group",
    "bcast_list_",
    "functional",
    "get_rank",
    "get_world_size",
    "group_barrier",
    "group_end",
    "group_start",
    "helper",
    "init_process_group",
    "is_distributed",
    "launcher",
    "make_allreduce_cb",
    "override_backend",
    "synchronized",
]
