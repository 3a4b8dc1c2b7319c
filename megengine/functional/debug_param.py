"""MegEngine's setting of how kernels are chosen.

Here the first usable kernel of each list runs, which is reproducible, so every strategy gives the same numbers. The
setting is kept for scripts that read it back; to choose kernels by measuring, compile a plan with `tune=True`.
"""

from __future__ import annotations

import enum
import os

from megengine.core.effectless import warn_once
from megengine.core.errors import OptionError, nearest
from megengine.core.exports import own_names


class Strategy(enum.Flag):
    """How kernels are chosen; can be combined with `|`."""

    HEURISTIC = enum.auto()
    PROFILE = enum.auto()
    REPRODUCIBLE = enum.auto()


def _parsed(option: str | Strategy) -> Strategy:
    if isinstance(option, Strategy):
        return option
    known, strategy = Strategy.__members__, Strategy(0)
    for part in str(option).split("_"):
        if part not in known:
            raise OptionError(
                f"set_execution_strategy: option is {option!r}; expected {', '.join(known)}, "
                f"or several joined by '_'{nearest(part, known)}"
            )
        strategy |= known[part]
    return strategy


_strategy = [_parsed(os.environ.get("MEGENGINE_EXECUTION_STRATEGY", "HEURISTIC"))]


def get_execution_strategy() -> Strategy:
    """The strategy last set; HEURISTIC, or what MEGENGINE_EXECUTION_STRATEGY says, if none was."""
    return _strategy[0]


def set_execution_strategy(option: str | Strategy) -> None:
    """Keep a strategy: "HEURISTIC", "PROFILE", "REPRODUCIBLE", or several joined by "_". Raises OptionError."""
    _strategy[0] = _parsed(option)
    if Strategy.PROFILE in _strategy[0]:
        warn_once("execution strategy PROFILE", "megengine.plan.compile(..., tune=True) chooses kernels by measuring")


get_conv_execution_strategy, set_conv_execution_strategy = get_execution_strategy, set_execution_strategy
__all__ = own_names(globals())
