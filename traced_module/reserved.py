"""Names of traced modules themselves, which submodules of the user's may have too."""

from __future__ import annotations

import inspect
from collections.abc import Container, Iterable
from typing import Any

from megengine.core.errors import GraphError
from megengine.module import Module


def keep_in_reach(kind: type[Module]) -> None:
    """Let reads of an object give the methods and properties of its class, also where a submodule has the same name.

    Such a submodule (`self.flatten = Flatten()`) is kept: graphs read it, and `node.owner` gives it.
    """
    for name in dir(kind):
        own = inspect.getattr_static(kind, name)
        if not is_special(name) and isinstance(own, _KINDS):
            setattr(kind, name, _InReach(name, own))


_KINDS = (property, classmethod, staticmethod, type(keep_in_reach))


class _InReach:
    """A method or property that an object's own attributes do not hide."""

    def __init__(self, name: str, own: Any) -> None:
        self.name, self.own, self.__doc__ = name, own, own.__doc__

    def __get__(self, module: Any, kind: Any = None) -> Any:
        if module is None and isinstance(self.own, property):
            return self.own
        return self.own.__get__(module, kind)

    def __set__(self, module: Any, value: Any) -> None:
        object.__getattribute__(module, "__dict__")[self.name] = value

    def __delete__(self, module: Any) -> None:
        del object.__getattribute__(module, "__dict__")[self.name]


def is_special(name: str) -> bool:
    """True for names to which Python gives a meaning in every module, as `__class__`; others are mere texts."""
    return name.startswith("__") and hasattr(Module, name)


def state_names(kind: type[Module]) -> frozenset[str]:
    """Attributes of objects of a class, which are their state."""
    return frozenset(object.__getattribute__(kind(), "__dict__"))


def check_names(names: Iterable[str], taken: Container[str], owner: str) -> None:
    """Refuse submodules and tensors under names that traced modules need for their state."""
    for name in sorted(names):
        if name in taken or is_special(name):
            raise GraphError(
                f"trace_module: {owner} has a submodule or tensor called {name!r}, which is an attribute of every "
                "traced module; give it another name"
            )
