"""How many CPUs the process may keep busy where a control group limits their time, as containers do."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path

_LIMITS = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))  # of versions 2 and 1


def _groups(root: Path, membership: Path) -> Iterator[Path]:
    """The folders of the groups that the process is in, and of those around them."""
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = root if not controllers else root / "cpu"
        if not controllers or "cpu" in controllers.split(","):
            inside = top / path.lstrip("/")
            yield from (folder for folder in (inside, *inside.parents) if folder.is_relative_to(top))


def _limit(group: Path) -> float:
    for names in _LIMITS:
        try:
            quota, period = map(int, " ".join((group / name).read_text() for name in names).split())
        except (OSError, ValueError):  # no such file, or a word for no limit
            continue
        if quota > 0:
            return quota / period
    return math.inf


@functools.cache
def quota(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """The CPUs whose time the process may use up, rounded up; those of the machine where nothing limits it."""
    try:
        least = min(map(_limit, _groups(root, membership)), default=math.inf)
    except OSError:
        least = math.inf
    return max(1, math.ceil(min(least, os.cpu_count() or 1)))
