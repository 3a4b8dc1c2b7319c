"""Containers of modules while a model is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.module import Module
from megengine.tensor import Tensor

Observed = Callable[[str, Any], Any]  # a path and what is there -> what the reader gets


def holds_modules(value: Any) -> bool:
    """True for a list, tuple or dict with a module in it, however deep."""
    entries = value.values() if isinstance(value, Mapping) else value
    return any(isinstance(v, Module) or (isinstance(v, (list, tuple, dict)) and holds_modules(v)) for v in entries)


def check_name(name: str, holder: str, value: Any) -> None:
    """Refuse a module or tensor whose name cannot be a part of a path. Raises GraphError."""
    if ("." in name or not name) and (
        isinstance(value, (Module, Tensor)) or (isinstance(value, (list, tuple, dict)) and holds_modules(value))
    ):
        why = "without dots, which stand between the names of a path in graphs" if name else "that is not empty"
        raise GraphError(
            f"{holder or 'the module'} has a submodule or tensor called {name!r}; expected a name {why}; "
            "give it another name"
        )


def _class_of_items(view: Any) -> type:
    return type(view._items)


class SequenceView(Sequence):
    """A list or tuple of modules while it is traced: every entry taken counts as a read."""

    __class__ = property(_class_of_items)  # so that `isinstance(self.layers, list)` holds

    def __init__(self, observed: Observed, path: str, items: Sequence[Any]) -> None:
        self._observed, self._path, self._items = observed, path, items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        return self._observed(f"{self._path}.{at}", self._items[at])

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self]


class MappingView(Mapping):
    """A dict of modules while it is traced: every entry taken counts as a read."""

    __class__ = property(_class_of_items)

    def __init__(self, observed: Observed, path: str, items: Mapping[Any, Any]) -> None:
        self._observed, self._path, self._items = observed, path, items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __getitem__(self, key: Any) -> Any:
        check_name(str(key), self._path, self._items[key])
        return self._observed(f"{self._path}.{key}", self._items[key])

    def values(self) -> Any:
        """All entries, each read now, as MegEngine counts them."""
        return dict(self).values()

    def items(self) -> Any:
        """All keys and entries, each read now."""
        return dict(self).items()
