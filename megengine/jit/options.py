"""Options objects of MegEngine's `jit.trace`: scripts make and pass them. They have no effect here, and warn once."""

from __future__ import annotations

from dataclasses import dataclass, field

from megengine.core.effectless import warn_once
from megengine.core.errors import MegEngineError

NO_EFFECT = "functions run as they are written; megengine.plan.compile makes models fast"


class Options:
    """Base of options objects: making one warns."""

    def __post_init__(self) -> None:
        warn_once(f"megengine.jit.{type(self).__name__}", NO_EFFECT)


class TraceError(MegEngineError, RuntimeError):
    """MegEngine's error for a traced function that behaves differently at a later call; never raised here."""


@dataclass
class GraphOptimizationConfig(Options):
    """Fusions that MegEngine's just-in-time compiler may do; None leaves the choice to it."""

    jit_fuse_dimshuffle: bool | None = field(default=None, init=False)
    jit_fuse_reduce: bool | None = field(default=None, init=False)


@dataclass
class SublinearMemoryConfig(Options):
    """Options of MegEngine's search for values to recompute."""

    thresh_nr_try: int = 10
    genetic_nr_iter: int = 0
    genetic_pool_size: int = 20
    lb_memory_mb: int = 0
    num_worker: int = 1


@dataclass
class DTRConfig(Options):
    """When MegEngine drops values to compute them anew."""

    eviction_threshold: int = 0
    evictee_minimum_size: int = 1024**2
    recomp_memory_factor: float = 1
    recomp_time_factor: float = 1


__all__ = ["DTRConfig", "GraphOptimizationConfig", "SublinearMemoryConfig", "TraceError"]
