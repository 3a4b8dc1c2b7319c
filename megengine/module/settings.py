"""Who hears of it when a setting of a layer is changed from outside of the layer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_PLAIN = frozenset((int, float, bool, str, tuple, list, type(None)))
_MISSING = object()
_listeners: list[Callable[[Any, str, Any], bool]] = []


def hear_settings(listener: Callable[[Any, str, Any], bool]) -> None:
    """Ask `listener(module, name, value)` before a setting takes another value; True says that it is done."""
    _listeners.append(listener)


def is_heard(module: Any, name: str, value: Any, of_all: frozenset[str]) -> bool:
    """True if a listener has set an attribute that a module has already; what its own methods set is its business."""
    if type(value) not in _PLAIN or name in of_all or not _listeners:
        return False
    old = object.__getattribute__(module, "__dict__").get(name, _MISSING)
    if old is _MISSING or type(old) not in _PLAIN or (type(old) is type(value) and old == value):
        return False
    caller = sys._getframe(2)
    names = caller.f_code.co_varnames
    if names and caller.f_locals.get(names[0]) is module:
        return False
    return any(listener(module, name, value) for listener in _listeners)
