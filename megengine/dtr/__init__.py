"""Limits on memory by recomputation, under MegEngine's names. Nothing is recomputed here, as a warning says: large
batches are best cut into several, whose gradients add up.
"""

from __future__ import annotations

import sys

from megengine.core.effectless import Settings, warn_once

eviction_threshold: int | str = 0
evictee_minimum_size: int | str = 1024 * 1024
enable_sqrt_sampling = False

_WHY = "memory is not limited by recomputation; use smaller batches"


def enable() -> None:
    """Accepted without effect; a warning says so once."""
    warn_once("megengine.dtr.enable()", _WHY)


def disable() -> None:
    """Nothing to switch off."""


sys.modules[__name__].__class__ = Settings
