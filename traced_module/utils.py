"""Attributes of modules by path."""

from __future__ import annotations

from typing import Any

from megengine.core import absent
from megengine.core.errors import GraphError, NameInUseError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.node import get_subattr as _get_subattr

__all__ = ["assign_attr", "get_subattr"]


def get_subattr(module: Any, target: str) -> Any:
    """The attribute of a module at a dotted path; the module itself at an empty one. Raises GraphError otherwise."""
    return _get_subattr(module, target) if target else module


def assign_attr(obj: Module | Tensor, module: Module, target: str) -> None:
    """Set `module.<target>`, a dotted path whose parents exist, to a module or tensor.

    Raises GraphError if a parent is missing or the name is empty, NameInUseError if the path ends in something that is
    neither.
    """
    parent, _, name = target.rpartition(".")
    if not name:
        raise GraphError(f"assign_attr: {target!r} ends in an empty name; expected a path such as 'layer1.conv'")
    owner = get_subattr(module, parent) if parent else module
    have = getattr(owner, name, None)
    if have is not None and not isinstance(have, (Module, Tensor)):
        raise NameInUseError(f"assign_attr: {target!r} is a {type(have).__name__}; choose another name")
    setattr(owner, name, obj)


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
