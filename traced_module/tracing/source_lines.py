"""Lines of the user's code from which something was called."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from types import CodeType


@functools.lru_cache(maxsize=512)
def _file_name(path: str) -> str:
    return Path(path).name


def user_line(entered: str = "", entry: CodeType | None = None) -> str:
    """file:line of the innermost frame outside this package; `entered` if `entry` was called further in."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is entry:
            return entered
        if not frame.f_globals.get("__name__", "").startswith("megengine."):
            return f"{_file_name(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
