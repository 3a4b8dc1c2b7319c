"""Listeners for settings of layers that are changed from outside the layer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from megengine.tensor import Tensor

_PLAIN = frozenset((int, float, bool, str, tuple, list, type(None)))
_MISSING = object()
_listeners: list[Callable[[Any, str, Any], bool]] = []


def add_listener(listener: Callable[[Any, str, Any], bool]) -> None:
    """Call `listener(module, name, value)` before a setting takes another value; True means that it has set it."""
    _listeners.append(listener)


def is_handled(module: Any, name: str, value: Any, of_all: frozenset[str], layers: type) -> bool:
    """True if a listener has set an existing attribute of a module; the module's own methods are not reported.

    Settings are plain values, tensors of another shape or dtype, and modules (of class `layers`) in a module.
    """
    if name in of_all or not _listeners:
        return False
    old = object.__getattribute__(module, "__dict__").get(name, _MISSING)
    if old is _MISSING or not _is_another(old, value, layers):
        return False
    caller = sys._getframe(2)
    names = caller.f_code.co_varnames
    if names and caller.f_locals.get(names[0]) is module:
        return False
    return any(listener(module, name, value) for listener in _listeners)


def _is_another(old: Any, value: Any, layers: type) -> bool:
    """True if the new setting differs, and shapes may depend on it."""
    if type(value) in _PLAIN:
        return type(old) in _PLAIN and not (type(old) is type(value) and old == value)
    if isinstance(value, Tensor):
        return isinstance(old, Tensor) and old.spec != value.spec
    return old is not value and issubclass(type(old), layers) and issubclass(type(value), layers)
