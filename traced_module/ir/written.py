"""How the texts of graphs and expressions write the names of nodes: `f"{graph:ip}"`, as MegEngine does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from megengine.core.text import one_line

_FLAGS: ContextVar[str] = ContextVar("flags", default="")


def written(node: Any) -> str:
    """The name of a node; with "p" behind the path of its graph, with "i" behind its id."""
    flags, name = _FLAGS.get(), node.name
    if "p" in flags:
        name = f"{one_line(node.graph.qualname).replace('.', '_')}_{name}"
    return f"%{node.id}_{name}" if "i" in flags else name


def formatted(value: Any, spec: str) -> str:
    """A graph, expression or node with names as the letters "i" and "p" say, or else as a text is formatted."""
    if set(spec) <= {"i", "p"}:
        with _names(spec):
            return repr(value)
    return format(repr(value), spec)


@contextmanager
def _names(flags: str) -> Iterator[None]:
    token = _FLAGS.set(flags)
    try:
        yield
    finally:
        _FLAGS.reset(token)
