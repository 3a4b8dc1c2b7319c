"""Listeners for settings of layers that are changed from outside the layer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from megengine.tensor import Tensor

_PLAIN = frozenset((int, float, bool, str, tuple, list, dict, type(None)))
_MISSING = object()
_listeners: list[Callable[[Any, str, Any], bool]] = []


def add_listener(listener: Callable[[Any, str, Any], bool]) -> None:
    """Call `listener(module, name, value)` before a setting takes another value; True means that it has set it."""
    _listeners.append(listener)


def is_handled(module: Any, name: str, value: Any, of_all: frozenset[str], layers: type) -> bool:
    """True if a listener has set an existing attribute of a module; the module's own methods are not reported.

    Settings are plain values, tensors of another shape or dtype, and modules (of class `layers`) in a module.
    """
    if name in of_all or not _is_change(module, name, value, layers) or _is_own_method(sys._getframe(2), module):
        return False
    return any(listener(module, name, value) for listener in _listeners)


def set_as_edit(module: Any, name: str, value: Any, layers: type) -> bool:
    """As `is_handled`, for a method that stands for a change from outside: `sequential[0] = layer`."""
    return _is_change(module, name, value, layers) and any(listener(module, name, value) for listener in _listeners)


def _is_change(module: Any, name: str, value: Any, layers: type) -> bool:
    if not _listeners:
        return False
    old = object.__getattribute__(module, "__dict__").get(name, _MISSING)
    return old is not _MISSING and _is_another(old, value, layers)


def _is_own_method(frame: FrameType | None, module: Any) -> bool:
    """True while a method of the module runs on it, and calls what sets the attribute."""
    homes = {kind.__qualname__ for kind in type(module).__mro__}
    while frame is not None:
        code = frame.f_code
        first = code.co_varnames[:1]
        if code.co_qualname.rpartition(".")[0] in homes and first and frame.f_locals.get(first[0]) is module:
            return True
        frame = frame.f_back
    return False


def _is_another(old: Any, value: Any, layers: type) -> bool:
    """True if the new setting differs, and shapes may depend on it."""
    if type(value) in _PLAIN:
        return type(old) in _PLAIN and not _is_equal(old, value)
    if isinstance(value, Tensor):
        return isinstance(old, Tensor) and old.spec != value.spec
    return old is not value and issubclass(type(old), layers) and issubclass(type(value), layers)


def _is_equal(old: Any, value: Any) -> bool:
    """True for equal plain values; containers may hold tensors and layers, which are equal to themselves only."""
    if type(old) is not type(value):
        return False
    if isinstance(value, dict):
        return old.keys() == value.keys() and all(_is_equal(old[key], entry) for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return len(old) == len(value) and all(map(_is_equal, old, value))
    return old is value or (type(value) in _PLAIN and old == value)
