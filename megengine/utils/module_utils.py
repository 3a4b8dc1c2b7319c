"""Modules by their paths, and their mode for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from megengine.core.errors import OptionError, nearest
from megengine.module import Module

__all__ = ["get_expand_structure", "set_expand_structure", "set_module_mode_safe"]


def _step(value: Any, part: str, key: str) -> Any:
    if isinstance(value, (list, tuple)):
        if not part.isdecimal() or int(part) >= len(value):
            raise OptionError(f"path {key!r}: {part!r} is no position in a list of {len(value)}")
        return value[int(part)]
    if isinstance(value, dict):
        entries = {str(k): v for k, v in value.items()}
        if part not in entries:
            raise OptionError(f"path {key!r}: no entry {part!r}{nearest(part, entries)}")
        return entries[part]
    try:
        return getattr(value, part)
    except AttributeError:
        known = list(vars(value)) if hasattr(value, "__dict__") else []
        error = f"path {key!r}: {type(value).__name__} has no attribute {part!r}{nearest(part, known)}"
        raise AttributeError(error) from None


def get_expand_structure(obj: Module, key: str) -> Any:
    """The value at a dotted path of attributes, entries of lists ("layers.0") and of dicts.

    Raises AttributeError or OptionError that names the part which does not exist.
    """
    for part in key.split("."):
        obj = _step(obj, part, key)
    return obj


def set_expand_structure(obj: Module, key: str, value: Any) -> None:
    """Replace the value at a dotted path. A tuple on the way is replaced in its container.

    Raises AttributeError or OptionError that names the part which does not exist.
    """
    head, _, last = key.rpartition(".")
    parent = get_expand_structure(obj, head) if head else obj
    _step(parent, last, key)
    if isinstance(parent, tuple):
        position = int(last)
        set_expand_structure(obj, head, (*parent[:position], value, *parent[position + 1 :]))
    elif isinstance(parent, list):
        parent[int(last)] = value
    elif isinstance(parent, dict):
        parent[next(k for k in parent if str(k) == last)] = value
    else:
        setattr(parent, last, value)


@contextmanager
def set_module_mode_safe(module: Module, training: bool = False) -> Iterator[Module]:
    """A module and all below it in training or evaluation mode; each has its own mode again afterwards."""
    before = [(m, m.training) for m in module.modules()]
    module.train(training)
    try:
        yield module
    finally:
        for m, mode in before:
            m.training = mode
