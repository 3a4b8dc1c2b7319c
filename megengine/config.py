"""Options of MegEngine's executor: they can be read and set. They have no effect here, where calls are synchronous and
kernels deterministic: setting one warns once. Names that do not exist are refused.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from megengine.core.effectless import Settings
from megengine.core.errors import OptionError

async_level = 2
benchmark_kernel = False
benchmark_with_subprocess = False
deterministic_kernel = False
disable_memory_forwarding = False
enable_drop = False
_auto_format_convert = True
_compute_mode = "default"

_WHY = "calls are synchronous, and the first usable kernel runs, which is deterministic"


def _kept(name: str, value: Any) -> Any:
    if name == "async_level" and value not in (0, 1, 2):
        raise OptionError(f"megengine.config.async_level is {value!r}; expected 0, 1 or 2")
    return value


@contextlib.contextmanager
def _override(
    benchmark_kernel: bool | None = None,
    deterministic_kernel: bool | None = None,
    async_level: int | None = None,
    compute_mode: str | None = None,
) -> Iterator[None]:
    """Set options in a `with` body; None keeps one."""
    given = {
        "benchmark_kernel": benchmark_kernel,
        "deterministic_kernel": deterministic_kernel,
        "async_level": async_level,
        "_compute_mode": compute_mode,
    }
    module = sys.modules[__name__]
    changes = {name: value for name, value in given.items() if value is not None}
    before = {name: getattr(module, name) for name in changes}
    for name, value in changes.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


sys.modules[__name__].__class__ = Settings
