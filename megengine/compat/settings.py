"""The module `megengine.core._config`: its attributes are those of `megengine.config`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from megengine import config
from megengine.compat.runtime import get_auto_format_convert, set_auto_format_convert
from megengine.core.errors import MissingNameError
from megengine.core.options import get_option, set_option

_FUNCTIONS = {f.__name__: f for f in (get_option, set_option, get_auto_format_convert, set_auto_format_convert)}
_NAMES = tuple(name for name, value in vars(config).items() if isinstance(value, (bool, int)) and name[0] != "_")


def _clear_algorithm_cache() -> None:
    """Nothing: kernels are chosen without measuring."""


@contextlib.contextmanager
def _override(**options: Any) -> Iterator[None]:
    """Set options in a `with` body; None keeps one."""
    before = _reset_execution_config(**options)
    try:
        yield
    finally:
        _reset_execution_config(**before)


def _reset_execution_config(compute_mode: str | None = None, **options: Any) -> dict[str, Any]:
    """Set options, and return the old values; a compute mode has no effect."""
    changes = {name: value for name, value in options.items() if value is not None}
    before = {name: getattr(config, name) for name in changes}
    for name, value in changes.items():
        setattr(config, name, value)
    return before


_FUNCTIONS |= {f.__name__: f for f in (_clear_algorithm_cache, _override, _reset_execution_config)}


class _Settings(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS:
            return _FUNCTIONS[name]
        if name.removeprefix("_") in _NAMES:
            return getattr(config, name.removeprefix("_"))
        if name == "_compute_mode":
            return "default"
        text = f"module {self.__name__!r} has no attribute {name!r}"
        raise MissingNameError(text, name, lambda: [*_FUNCTIONS, *_NAMES])

    def __setattr__(self, name: str, value: Any) -> None:
        if name.removeprefix("_") in _NAMES:
            setattr(config, name.removeprefix("_"), value)
        else:
            super().__setattr__(name, value)


def become(module: str) -> None:
    """Give a module the attributes of `megengine.config`."""
    sys.modules[module].__class__ = _Settings
