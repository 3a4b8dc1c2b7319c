"""`jit.trace` under MegEngine's names: functions run as they are written.

`traced_module` captures models, and `plan.compile` makes them fast.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from megengine.core import absent, hooks, late
from megengine.core.effectless import warn_once
from megengine.core.errors import ArgumentError, OptionError, nearest
from megengine.core.text import counted
from megengine.jit.options import (
    NO_EFFECT,
    DTRConfig,
    GraphOptimizationConfig,
    Options,
    SublinearMemoryConfig,
    TraceError,
)

# in the order in which MegEngine 1.13 takes them, then those of other versions
_OPTIONS = (
    *("symbolic", "capture_as_const", "record_only", "sublinear_memory_config", "dtr_config", "profiling"),
    *("opt_level", "graph_opt_config", "symbolic_shape", "without_host"),
    *("graph_opt", "imperative", "overall", "backend", "warn", "data_shape"),
)


class trace:  # noqa: N801 (MegEngine's name)
    """Decorator: the function runs unchanged. Options have no effect, as a warning says once for each of them.

    But `replay=True`, which is no option of MegEngine's: on a GPU the fourth call with arguments of the same kinds is
    recorded as a CUDA graph, and later ones replay it without running Python. It is for steps of training: forward,
    backward, `step()` and `clear_grad()`, with data as tensors of the GPU. Rates that a schedule changes, and random
    numbers that are made on the GPU, are new at each replay; what else Python does, such as a count or a condition, is
    not done again. Where values are read (`.item()`), data come from main memory, or tensors that the function makes
    outlive it, it runs as it is written, and a warning says why.

    Raises:
        ArgumentError: an option is unknown.
    """

    __wrapped__: Callable[..., Any]

    def __new__(cls, *args: Any, **options: Any) -> Any:
        if not args:
            return functools.partial(cls, **options)
        return super().__new__(cls)

    def __init__(self, function: Callable[..., Any], *values: Any, **options: Any) -> None:
        if len(values) > len(_OPTIONS):
            raise ArgumentError(
                f"trace: got {counted(len(values), 'option')} by place; expected at most {len(_OPTIONS)}"
            )
        self._call = _replayed(function) if options.pop("replay", False) else function
        options |= dict(zip(_OPTIONS, values, strict=False))
        unknown = sorted(options.keys() - set(_OPTIONS))
        if unknown:
            raise ArgumentError(f"trace: unknown option {unknown[0]!r}{nearest(unknown[0], _OPTIONS)}")
        if not callable(function):
            raise OptionError(f"trace: function is a {type(function).__name__}; expected something to call")
        for name, value in options.items():
            if value not in (None, False) and not isinstance(value, Options):  # which has warned
                warn_once(f"megengine.jit.trace({name}=...)", NO_EFFECT)
        functools.update_wrapper(self, function, updated=())
        self.options = options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return self if owner is None else functools.partial(self, owner)

    def dump(self, *args: Any, **kwargs: Any) -> None:
        """Refused: a function is not a file. Raises OptionError that says how models are written."""
        raise OptionError(
            "trace.dump: files for inference are made of modules: "
            "traced = megengine.traced_module.trace_module(net, x), then megengine.save(traced, 'net.tm') to keep the "
            "model, or megengine.plan.compile(traced).save('net.mgt') for a plan"
        )


def _replayed(function: Any) -> Callable[..., Any]:
    if not callable(function):
        return function
    replay: Any = late.part(__name__, "replay")  # kernels of GPUs are imported where they are used
    return replay.Replayed(function)


@contextmanager
def _unwatched() -> Iterator[None]:
    with hooks.unheard():
        yield


def exclude_from_trace(function: Callable[..., Any] | None = None) -> Any:
    """Keep the calls in a `with` body, or in a function that it decorates, out of the graph that is traced.

    Their results are constants of the graph.
    """
    return _unwatched() if function is None else _unwatched()(function)


def partial_trace(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Decorator: as `trace`, for a part of a network."""
    return trace(**options) if function is None else trace(function)


__getattr__ = partial(absent.part_or_error, __name__)


__all__ = [
    "DTRConfig",
    "GraphOptimizationConfig",
    "SublinearMemoryConfig",
    "TraceError",
    "exclude_from_trace",
    "partial_trace",
    "trace",
]
