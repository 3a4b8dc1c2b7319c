"""Handles of hooks."""

from __future__ import annotations

from collections.abc import Callable


class HookHandler:
    """A hook in a table, which it can leave again."""

    def __init__(self, source_dict: dict[int, Callable], hook: Callable) -> None:
        self._table, self.id = source_dict, max(source_dict, default=-1) + 1
        source_dict[self.id] = hook

    def remove(self) -> None:
        """Remove the hook; doing it twice is harmless."""
        self._table.pop(self.id, None)
