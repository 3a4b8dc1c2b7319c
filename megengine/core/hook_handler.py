"""Handles of hooks."""

from __future__ import annotations

from collections.abc import Callable

from megengine.core.errors import ArgumentError


class HookHandler:
    """A hook in a table, which it can leave again."""

    def __init__(self, source_dict: dict[int, Callable], hook: Callable) -> None:
        if not callable(hook):
            raise ArgumentError(f"hook is a {type(hook).__name__}; expected something to call")
        self._table, self.id, self._removed = source_dict, max(source_dict, default=-1) + 1, False
        source_dict[self.id] = hook

    def remove(self) -> None:
        """Remove the hook; doing it twice is harmless, also when another hook has got its number since."""
        if not self._removed:
            self._table.pop(self.id, None)
        self._removed = True
