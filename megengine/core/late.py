"""Parts of the package that are imported when a name of theirs is met: in a file, say."""

from __future__ import annotations

from collections.abc import Callable

_providers: dict[str, Callable[[], object]] = {}


def provide(prefix: str, load: Callable[[], object]) -> None:
    """`load` imports what defines the names that begin with `prefix`."""
    _providers[prefix] = load


def ensure(name: str) -> bool:
    """Import what defines a name; False if nobody claims it (or it was done before)."""
    found = [p for p in _providers if name.startswith(p)]
    for prefix in found:
        _providers.pop(prefix)()
    return bool(found)
