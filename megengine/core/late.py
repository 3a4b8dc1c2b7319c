"""Parts of the package that are imported when one of their names is used, for instance in a file."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from types import ModuleType

from megengine.core.paths import PATHS

_providers: dict[str, Callable[[], object]] = {}


def provide(prefix: str, load: Callable[[], object]) -> None:
    """`load` imports what defines the names that begin with `prefix`."""
    _providers[prefix] = load


def ensure(name: str) -> bool:
    """Import what defines a name; False if no provider has it, or it was imported before."""
    prefixes = [p for p in _providers if name.startswith(p)]
    for prefix in prefixes:
        load = _providers.get(prefix)
        if load is not None:
            load()
            _providers.pop(prefix, None)  # not before: another thread would find neither the provider nor its names
    return bool(prefixes)


@functools.cache
def parts(package: str, *, private: bool = False) -> frozenset[str]:
    """Names of the modules and folders of a package; with `private` also those that begin with an underscore."""
    names = {module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)}
    names |= {name for parent, _, name in (path.rpartition(".") for path in PATHS) if parent == package}
    return frozenset(name for name in names if private or not name.startswith("_"))


def part(package: str, name: str, *, private: bool = False) -> ModuleType | None:
    """A part of a package, imported when it is first named; None if the package has none of that name."""
    return importlib.import_module(f"{package}.{name}") if name in parts(package, private=private) else None
