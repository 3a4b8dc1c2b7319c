"""Handles of hooks."""

from __future__ import annotations

from collections.abc import Callable

from megengine.core.errors import ArgumentError


class HookHandler:
    """A hook in a table, from which it can be removed."""

    def __init__(self, source_dict: dict[int, Callable], hook: Callable) -> None:
        if not callable(hook):
            raise ArgumentError(f"hook is a {type(hook).__name__}; expected something to call")
        self._table, self.id, self._removed = source_dict, max(source_dict, default=-1) + 1, False
        source_dict[self.id] = hook

    def remove(self) -> None:
        """Remove the hook. A second call does nothing, even if another hook has its number by now."""
        if not self._removed:
            self._table.pop(self.id, None)
        self._removed = True
