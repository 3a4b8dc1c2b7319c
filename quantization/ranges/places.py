"""Where files and other programs look for a class that MegEngine has too."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

_Class = TypeVar("_Class", bound=type)


def at(module: str) -> Callable[[_Class], _Class]:
    """Decorator of a class that MegEngine has in `module`: files store that path, and a face there exports it."""

    def place(cls: _Class) -> _Class:
        cls.__module__ = module
        return cls

    return place
