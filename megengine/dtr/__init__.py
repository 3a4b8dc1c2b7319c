"""Limits on memory by recomputation, under MegEngine's names. Nothing is recomputed here, as a warning says: large
batches are best cut into several, whose gradients add up.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from megengine.core.effectless import Settings, warn_once
from megengine.core.errors import ArgumentError, OptionError

eviction_threshold: int | str = 0  # in bytes; "1.5 GB" is read as a number of bytes
evictee_minimum_size: int | str = 1024 * 1024
enable_sqrt_sampling = False

_WHY = "memory is not limited by recomputation; use smaller batches"


_UNITS = {"B": 1, "KB": 1024, "MB": 1024**2, "GB": 1024**3}
_SIZE = re.compile(r"\s*(\d+\.?\d*)\s*([KMG]?B)\s*", re.IGNORECASE)


def _kept(name: str, value: Any) -> Any:
    """A number of bytes, which may be given as a text with a unit."""
    if name == "enable_sqrt_sampling":
        return value
    if isinstance(value, str):
        size = _SIZE.fullmatch(value)
        if size is None:
            raise OptionError(f"megengine.dtr.{name} is {value!r}; expected bytes, or a text as '512MB' or '1.5 GB'")
        return int(float(size[1]) * _UNITS[size[2].upper()])
    if not isinstance(value, int) or value < 0:
        raise ArgumentError(f"megengine.dtr.{name} is {value!r}; expected a number of bytes, 0 or more, or a text")
    return value


def enable() -> None:
    """Accepted without effect; a warning says so once."""
    warn_once("megengine.dtr.enable()", _WHY)


def disable() -> None:
    """Nothing to switch off."""


sys.modules[__name__].__class__ = Settings
