"""Folders, and modules that live in them."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from megengine.core.errors import OptionError


def cache_folder(part: str) -> Path:
    """A folder of the cache, made if it is missing: below MGE_HOME, XDG_CACHE_HOME/megengine or ~/.cache/megengine."""
    home = os.environ.get("MGE_HOME")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "megengine"
    folder = base / "hub" / part
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def cd(target: str | os.PathLike[str]) -> Iterator[None]:
    """Another working folder in the body; the old one again afterwards."""
    before = Path.cwd()
    os.chdir(target)
    try:
        yield
    finally:
        os.chdir(before)


def check_module_exists(module: str) -> bool:
    """True if a module can be found, without importing it (its parents are)."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def load_module(name: str, path: str | os.PathLike[str]) -> ModuleType:
    """Run a Python file as a module of that name; it can import from its folder. Raises OptionError for other files.

    The file runs with your rights: call it only for files that you trust.
    """
    file = Path(path).resolve()
    spec = importlib.util.spec_from_file_location(name, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise OptionError(f"hub: {str(path)!r} cannot be imported; expected a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(file.parent))
    return module


__all__ = ["cache_folder", "cd", "check_module_exists", "load_module"]
