"""The order of expressions in a graph: a linked list whose members know in constant time who comes first."""

from __future__ import annotations

from collections.abc import Iterator

from megengine.traced_module.ir.expr import Expr

_GAP = 1 << 20  # between the keys of what is appended; halved by each insertion between the same two
_CROWDED = 1.5  # a range of 2**n keys is numbered anew when it holds less than (2 / _CROWDED)**n members


class ExprOrder:
    """Expressions in execution order.

    Removal and appending take constant time, insertion logarithmic time (amortised), wherever it is done: see Bender,
    Cole, Demaine, Farach-Colton and Zito, Two Simplified Algorithms for Maintaining Order in a List (2002).
    """

    __slots__ = ("_body", "_first", "_last", "_length")

    def __init__(self) -> None:
        self._first: Expr | None = None
        self._last: Expr | None = None
        self._body: Expr | None = None
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
    def body(self) -> Expr | None:
        """The first expression that is no input of the graph."""
        return self._body

    def insert(self, expr: Expr, before: Expr | None) -> None:
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
            _spread(expr)
        if expr.kind != "Input" and (self._body is None or expr._key < self._body._key):
            self._body = expr

    def remove(self, expr: Expr) -> None:
        if expr is self._body:
            self._body = expr._next
            while self._body is not None and self._body.kind == "Input":
                self._body = self._body._next
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


def _spread(expr: Expr) -> None:
    """Give new keys to an expression and its neighbours in the smallest range of keys that has room for more."""
    first = last = expr
    count, bits, room = 1, 0, 1.0
    while count >= room:
        bits, room = bits + 1, room * 2 / _CROWDED
        low = expr._key >> bits << bits
        while first._prev is not None and first._prev._key >= low:
            first, count = first._prev, count + 1
        while last._next is not None and last._next._key < low + (1 << bits):
            last, count = last._next, count + 1
    key, step = expr._key >> bits << bits, (1 << bits) // count
    at: Expr | None = first
    for i in range(count):
        assert at is not None
        at._key, at = key + i * step, at._next
