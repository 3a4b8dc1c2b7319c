"""Garbage collection, paused while many long-lived objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Iterator[None]:
    """Switch garbage collection off in the body; if it was off before, it stays off.

    Building a graph makes tens of thousands of objects that refer to each other. Collections in between would take as
    long as making them.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def collect_recent() -> None:
    """Collect recent garbage.

    A model whose graphs refer to each other stays in memory, with its weights, until a collection. A call before each
    model is made keeps a loop at the memory of one model.
    """
    gc.collect(1)
