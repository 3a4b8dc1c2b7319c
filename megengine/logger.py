"""Logging: one logger of the package, whose level and file can be set."""

from __future__ import annotations

import logging
import os

_NAME = "megengine"
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def get_logger(name: str | None = None, formatter: type[logging.Formatter] = logging.Formatter) -> logging.Logger:
    """A logger below the package's; the package's own gets a handler to stderr at its first use."""
    root = logging.getLogger(_NAME)
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(formatter(_FORMAT, "%d %H:%M:%S"))
        root.addHandler(handler)
        root.setLevel(os.environ.get("MEGENGINE_LOGGING_LEVEL", "INFO"))
        root.propagate = False
    return root if name is None or name == _NAME else root.getChild(name.removeprefix(_NAME + "."))


def set_log_level(level: int | str, update_existing: bool = True) -> int:
    """Set the level ("DEBUG", "INFO", ..., or a number) and return the one before."""
    root = get_logger()
    before = root.level
    root.setLevel(level)
    return before


def set_log_file(fout: str | os.PathLike, mode: str = "a") -> None:
    """Write messages to a file too."""
    handler = logging.FileHandler(fout, mode=mode)
    handler.setFormatter(logging.Formatter(_FORMAT))
    get_logger().addHandler(handler)


def enable_debug_log() -> None:
    """Show debug messages."""
    set_log_level(logging.DEBUG)
