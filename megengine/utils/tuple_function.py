"""Arguments that are one number or one for each axis."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from megengine.core.errors import ShapeError
from megengine.core.text import counted

__all__ = ["get_ndtuple"]


def get_ndtuple(value: int | Iterable[int], *, n: int, allow_zero: bool = True) -> tuple[int, ...]:
    """As many integers as axes: of one, which is repeated, or of several.

    Raises ShapeError for another count, and for negative numbers (or 0, without `allow_zero`).
    """
    items = tuple(int(v) for v in value) if isinstance(value, Iterable) else (int(value),) * n
    if len(items) != n:
        raise ShapeError(f"get_ndtuple: got {counted(len(items), 'number')} {items}; expected {n}, or one for all")
    if min(items, default=1) < (0 if allow_zero else 1):
        raise ShapeError(
            f"get_ndtuple: got {items}; expected {'0 or more' if allow_zero else 'more than 0'} everywhere"
        )
    return items


_single, _pair, _triple = (partial(get_ndtuple, n=n) for n in (1, 2, 3))
_pair_nonzero, _triple_nonzero = (partial(get_ndtuple, n=n, allow_zero=False) for n in (2, 3))
_quadruple = partial(get_ndtuple, n=4)
