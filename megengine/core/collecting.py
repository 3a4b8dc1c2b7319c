"""Python's search for garbage cycles, put off while many objects are made that all stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """No search for garbage cycles in the body; where it was off before, it stays off.

    Building a graph makes tens of thousands of objects that refer to each other, and searching them again and again
    takes as long as making them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_recent() -> None:
    """Collect what was made since the last searches and is garbage now.

    A model whose graphs refer to each other stays in memory until it is found, and holds its weights: before another
    one is made this leaves room, so that a loop keeps one model's worth.
    """
    gc.collect(1)
