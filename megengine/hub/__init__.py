"""Models from a folder with a `hubconf.py`: its public functions are the entries.

Loading an entry runs the folder's code, which can do anything you can. So `load`, `list` and `help` ask for trust:
pass `trust=True` for a folder whose author you trust. Nothing is downloaded; clone a repository yourself and pass its
folder, so that you know which version runs.
"""

from __future__ import annotations

import builtins
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from megengine.core.errors import OptionError, nearest

_FILE = "hubconf.py"
Folder = str | os.PathLike[str]


def import_module(folder: Folder, *, trust: bool = False) -> ModuleType:
    """The folder's `hubconf.py` as a module; the folder can be imported from while it runs.

    Raises OptionError without `trust=True`, or where there is no such file.
    """
    path = Path(folder).resolve() / _FILE
    if not path.is_file():
        raise OptionError(
            f"hub: {str(folder)!r} has no {_FILE}; expected a local folder (clone the repository and pass its path)"
        )
    if trust is not True:
        raise OptionError(
            f"hub: {str(path)!r} is code that would run with your rights; pass trust=True if you trust it"
        )
    spec = importlib.util.spec_from_file_location("hubconf", path)
    if spec is None or spec.loader is None:
        raise OptionError(f"hub: {str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _entries(module: ModuleType) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isroutine(value) and not name.startswith("_") and getattr(value, "__module__", "") == "hubconf"
    }


def _entry(folder: Folder, name: str, trust: bool) -> Callable[..., Any]:
    found = _entries(import_module(folder, trust=trust))
    if name not in found:
        raise OptionError(f"hub: {str(folder)!r} has no entry {name!r}; it has {sorted(found)}{nearest(name, found)}")
    return found[name]


def list(folder: Folder, *, trust: bool = False) -> builtins.list[str]:
    """Names of the entries, in alphabetical order."""
    return sorted(_entries(import_module(folder, trust=trust)))


def help(folder: Folder, entry: str, *, trust: bool = False) -> str:
    """The docstring of an entry."""
    return inspect.getdoc(_entry(folder, entry, trust)) or ""


def load(folder: Folder, entry: str, *args: Any, trust: bool = False, **kwargs: Any) -> Any:
    """What the entry returns when called with the other arguments.

    >>> net = load("clones/models", "resnet18", trust=True)
    """
    return _entry(folder, entry, trust)(*args, **kwargs)


__all__ = ["help", "import_module", "list", "load"]
