"""Old names and old defaults that warn."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any

__all__ = ["deprecated_func", "deprecated_kwargs_default"]


def deprecated_func(version: str, origin: str, name: str, tbd: bool) -> Callable[..., Any]:
    """A function that warns (DeprecationWarning) and calls `name` of module `origin`; `tbd`: it will be removed."""
    target = getattr(importlib.import_module(origin), name)

    @functools.wraps(target)
    def call(*args: Any, **kwargs: Any) -> Any:
        text = f"{name} moved in version {version}; use {origin}.{name}" + (
            "; this name will be removed" if tbd else ""
        )
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return target(*args, **kwargs)

    return call


def deprecated_kwargs_default(version: str, kwargs_name: str, kwargs_pos: int) -> Callable[..., Any]:
    """Decorator: calls that leave out an argument whose default will change warn (PendingDeprecationWarning)."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if len(args) <= kwargs_pos and kwargs_name not in kwargs:
                text = f"{function.__name__}: the default of {kwargs_name!r} changes after version {version}; give it"
                warnings.warn(text, PendingDeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return call

    return declare
