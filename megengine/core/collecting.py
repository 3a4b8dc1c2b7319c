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
