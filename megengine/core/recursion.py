"""Python's recursion limit, raised for a while."""

from __future__ import annotations

import sys

from megengine.core.forks import lock_free_in_children

_lock = lock_free_in_children()


class AlternativeRecursionLimit:
    """A `with` body under another recursion limit. Bodies may nest, also across threads: the last one restores."""

    def __init__(self, new_py_limit: int) -> None:
        self.new_py_limit = new_py_limit
        self._inside, self._before = 0, 0

    def __enter__(self) -> None:
        with _lock:
            if self._inside == 0:
                self._before = sys.getrecursionlimit()
                sys.setrecursionlimit(self.new_py_limit)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with _lock:
            self._inside -= 1
            if self._inside == 0:
                sys.setrecursionlimit(self._before)


_DEEP = AlternativeRecursionLimit(10_000)


def max_recursion_limit() -> AlternativeRecursionLimit:
    """A `with` body that may recurse 10,000 deep: ten times Python's limit, and still within the C stack."""
    return _DEEP
