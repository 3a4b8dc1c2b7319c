"""Names of traced modules themselves, which submodules of the user's may have too."""

from __future__ import annotations

import inspect
from typing import Any

from megengine.core.errors import GraphError
from megengine.module import Module


def keep_in_reach(kind: type[Module]) -> None:
    """Let methods and properties that a class adds to Module be what is read under their names.

    A submodule of such a name (`self.flatten = Flatten()`) is kept all the same: graphs read it, `node.owner` gives it.
    """
    for name, own in list(vars(kind).items()):
        if not hasattr(Module, name) and (isinstance(own, property) or inspect.isfunction(own)):
            setattr(kind, name, _InReach(name, own))


class _InReach:
    """A method or property that an object's own attributes do not hide."""

    def __init__(self, name: str, own: Any) -> None:
        self.name, self.own, self.__doc__ = name, own, own.__doc__

    def __get__(self, module: Any, kind: Any = None) -> Any:
        return self.own if module is None else self.own.__get__(module, kind)

    def __set__(self, module: Any, value: Any) -> None:
        object.__getattribute__(module, "__dict__")[self.name] = value

    def __delete__(self, module: Any) -> None:
        del object.__getattribute__(module, "__dict__")[self.name]


def state_names(kind: type[Module]) -> frozenset[str]:
    """Attributes of objects of a class that those of a plain Module lack, and its private methods."""
    have, plain = (object.__getattribute__(made, "__dict__") for made in (kind(), Module()))
    return frozenset(have) - frozenset(plain) | {n for n in vars(kind) if n.startswith("_") and not hasattr(Module, n)}


def check_names(entries: dict[str, Any], taken: frozenset[str], owner: str) -> None:
    """Refuse submodules and tensors under names that traced modules need for their state."""
    for name in sorted(taken & entries.keys()):
        raise GraphError(
            f"trace_module: {owner} has a submodule or tensor called {name!r}, which is an attribute of every traced "
            "module; give it another name"
        )
