"""Settings of MegEngine that are accepted without effect, with one warning each, at the line that sets it."""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any

from megengine.core.errors import MissingNameError

_warned: set[str] = set()


class NoEffectWarning(UserWarning):
    """A setting that has no effect was set."""


def warn_once(name: str, why: str) -> None:
    """Warn that a setting has no effect, at the line outside the package that set it; once for each name."""
    if name in _warned:
        return
    _warned.add(name)
    warn_caller(f"{name} has no effect: {why}", NoEffectWarning)


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn at the line outside the package from which it was called: Python shows that line and filters by it."""
    depth, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "megengine":
        depth, frame = depth + 1, frame.f_back
    warnings.warn(text, category, stacklevel=depth)


class Settings(ModuleType):
    """A module whose numbers, words and switches are settings without effect: setting one warns.

    `_WHY` of the module says why there is none. Names that do not exist are refused. `_kept` of the module, where it
    has one, gives what is kept of a value, and raises if it is none of the setting.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            known = vars(self)
            if name not in known:
                public = [n for n, v in known.items() if not n.startswith("_") and _is_setting(v)]
                raise MissingNameError(f"{self.__name__} has no option {name!r}", name, lambda: public)
            if _is_setting(known[name]):
                value = known["_kept"](name, value) if "_kept" in known else value
                warn_once(f"{self.__name__}.{name}", known["_WHY"])
        super().__setattr__(name, value)


def _is_setting(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str))
