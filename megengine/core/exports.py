"""The public functions that have been declared, by the module whose face shows them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from megengine.core import absent

_homes: defaultdict[str, dict[str, Callable[..., Any]]] = defaultdict(dict)


def export(home: str, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function of a module."""
    _homes[home][name] = function
    return function


def withdraw(home: str, name: str) -> None:
    """Remove a function again."""
    del _homes[home][name]


def exports(home: str) -> dict[str, Callable[..., Any]]:
    """Name -> function of everything declared for a module: what its face exports."""
    return dict(_homes.get(home, {}))


def exported(home: str, name: str) -> Callable[..., Any]:
    """One function of a face, also if it was declared after the face was imported. Raises AttributeError."""
    functions = exports(home)
    if name not in functions:
        raise absent.missing(home, name, lambda: functions)
    return functions[name]


def own_names(module: dict[str, Any]) -> list[str]:
    """`__all__` of a module (its `globals()`): the public names that it defines, without what it imports."""
    home = module["__name__"]
    own = (n for n, v in module.items() if getattr(v, "__module__", home) == home and not isinstance(v, ModuleType))
    return sorted(n for n in own if n[0] != "_" and n != "TYPE_CHECKING")


def limit_stars(package: str) -> None:
    """Give every module of a package that has been imported, and has no `__all__`, that of `own_names`."""
    for name, module in list(sys.modules.items()):
        if name.startswith(f"{package}.") and "__all__" not in vars(module):
            vars(module)["__all__"] = own_names(vars(module))


def face(module: dict[str, Any]) -> None:
    """Put the functions declared for a module into it (its `globals()`), and `__all__`; later ones are found too."""
    home = module["__name__"]
    module.update(exports(home), __all__=sorted(exports(home)), __getattr__=partial(exported, home))
