"""The order of expressions in a graph: a linked list whose members know in constant time who comes first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from megengine.traced_module.expr import Expr

_GAP = 1 << 20  # keys between neighbours when they are numbered; halved by each insertion between the same two


class ExprOrder:
    """Expressions in execution order. Insertion and removal take constant time (amortised)."""

    __slots__ = ("_first", "_last", "_length")

    def __init__(self) -> None:
        self._first: Expr | None = None
        self._last: Expr | None = None
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Expr]:
        at = self._first
        while at is not None:
            following = at._next
            yield at
            at = following

    @property
    def last(self) -> Expr | None:
        """The last expression."""
        return self._last

    def insert(self, expr: Expr, before: Expr | None) -> None:
        """Put `expr` before another expression, or last."""
        previous = self._last if before is None else before._prev
        expr._prev, expr._next = previous, before
        if previous is None:
            self._first = expr
        else:
            previous._next = expr
        if before is None:
            self._last = expr
        else:
            before._prev = expr
        self._length += 1
        low = previous._key if previous is not None else (before._key - 2 * _GAP if before is not None else 0)
        expr._key = low + _GAP if before is None else (low + before._key) // 2
        if before is not None and expr._key == low:
            self._number()

    def _number(self) -> None:
        for i, expr in enumerate(self):
            expr._key = i * _GAP

    def remove(self, expr: Expr) -> None:
        """Take an expression out."""
        if expr._prev is None:
            self._first = expr._next
        else:
            expr._prev._next = expr._next
        if expr._next is None:
            self._last = expr._prev
        else:
            expr._next._prev = expr._prev
        expr._prev = expr._next = None
        self._length -= 1
