"""Logging: one logger of the package, whose level and file can be set."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

_NAME = "megengine"
_FORMAT = "%(asctime)s %(levelname)s %(message)s"
_outside: dict[str, logging.Logger] = {}  # loggers of scripts, which share level and handlers with the package's


class MegEngineLogFormatter(logging.Formatter):
    """Date, level and message; without colour codes, which files and pipes would show."""

    def __init__(self, fmt: str | None = None, datefmt: str | None = None, style: Any = "%", validate: bool = True):
        super().__init__(_FORMAT if fmt is None else fmt, datefmt, style, validate)


class MegBrainLogFormatter(MegEngineLogFormatter):
    """The formatter of messages from the native part, which here are written by the same logger."""


def get_logger(name: str | None = None, formatter: type[logging.Formatter] = MegEngineLogFormatter) -> logging.Logger:
    """A logger by its name; without a name the package's own, which gets a handler to stderr at its first use.

    A logger of another name gets a handler and the level of the package too.
    """
    root = logging.getLogger(_NAME)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(formatter(_FORMAT, "%d %H:%M:%S"))
        root.addHandler(handler)
        root.setLevel(os.environ.get("MEGENGINE_LOGGING_LEVEL", "INFO"))
        root.propagate = False
    if name is None or name == _NAME or name.startswith(_NAME + "."):
        return root if name is None else logging.getLogger(name)
    log = logging.getLogger(name)
    if name not in _outside:
        _outside[name] = log
        log.setLevel(root.level)
        log.propagate = False
        for handler in root.handlers:
            log.addHandler(handler)
    return log


def set_log_level(level: int | str, update_existing: bool = True) -> int:
    """Set the level ("DEBUG", "INFO", ..., or a number) and return the one before.

    Without `update_existing` loggers of scripts that exist already keep theirs.
    """
    root = get_logger()
    before = root.level
    for log in (root, *_outside.values()) if update_existing else (root,):
        log.setLevel(level)
    return before


def set_log_file(fout: str | os.PathLike, mode: str = "a") -> None:
    """Write messages to a file too."""
    handler = logging.FileHandler(fout, mode=mode)
    handler.setFormatter(logging.Formatter(_FORMAT))
    for log in (get_logger(), *_outside.values()):
        log.addHandler(handler)


def enable_debug_log() -> None:
    """Show debug messages."""
    set_log_level(logging.DEBUG)


def set_mgb_log_level(level: int | str) -> int:
    """`set_log_level`, by the name of MegEngine's native logger; there is one logger here. Returns the one before."""
    return set_log_level(level)


@contextmanager
def replace_mgb_log_level(level: int | str) -> Iterator[None]:
    """Another level in the body; the old one is restored after it, also when the body raises."""
    with ExitStack() as restored:
        restored.callback(set_log_level, set_log_level(level))
        yield


__all__ = [
    *("MegBrainLogFormatter", "MegEngineLogFormatter", "enable_debug_log", "get_logger", "replace_mgb_log_level"),
    *("set_log_file", "set_log_level", "set_mgb_log_level"),
]
