"""Limits on memory by recomputation, under MegEngine's names. Nothing is recomputed here: large batches are best cut
into several, whose gradients add up.
"""

from __future__ import annotations

from megengine.logger import get_logger

# MegEngine's settings; they have no effect
eviction_threshold: int | str = 0
evictee_minimum_size: int | str = 1024 * 1024
enable_sqrt_sampling = False


def enable() -> None:
    """Accepted; memory is not limited by recomputation, and a line in the log says so."""
    get_logger(__name__).info("dtr.enable: memory is not limited by recomputation; use smaller batches")


def disable() -> None:
    """Nothing to switch off."""
