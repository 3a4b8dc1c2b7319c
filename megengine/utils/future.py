"""A value that another thread sets."""

from __future__ import annotations

import threading
from typing import Any

from megengine.core.errors import OptionError

__all__ = ["Future"]


class Future:
    """A value that one thread sets once, and for which others wait. With `ack`, `set` waits until it has been read."""

    def __init__(self, ack: bool = True) -> None:
        self._ready, self._read = threading.Event(), threading.Event() if ack else None
        self._value: Any = None

    def set(self, value: Any) -> None:
        """Set the value. Raises OptionError the second time."""
        if self._ready.is_set():
            raise OptionError("Future.set: the value is set already; make another Future")
        self._value = value
        self._ready.set()
        if self._read is not None:
            self._read.wait()

    def get(self) -> Any:
        """The value; waits until it is set."""
        self._ready.wait()
        if self._read is not None:
            self._read.set()
        return self._value
