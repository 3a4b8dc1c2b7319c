"""The limit of memory: results that cannot fit are refused before the system kills the process."""

from __future__ import annotations

import contextlib
import functools
import math
import os

from megengine.core.errors import NotEnoughMemoryError

_GROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@functools.cache
def total_memory() -> int:
    """Bytes of main memory that this process may use: the machine's, or fewer in a container."""
    limits = [1 << 62]
    with contextlib.suppress(AttributeError, OSError, ValueError):  # the platform does not say
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _GROUP_LIMITS:
        try:
            with open(path) as file:
                limits.append(int(file.read()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(n for n in limits if n > 0)


def refuse_oversized(what: str, shape: tuple[int, ...], itemsize: int) -> None:
    """Raise NotEnoughMemoryError for an array that is larger than all memory; `what` names its maker."""
    size = math.prod(map(int, shape)) * itemsize
    if size > total_memory():
        raise NotEnoughMemoryError(
            f"{what}: there is not enough memory for a result of shape {shape}: it takes {size / 2**30:,.1f} GiB, "
            f"and there are {total_memory() / 2**30:,.1f}"
        )
