"""Attributes that only methods change: to set one is refused, and the method is named."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, cast

from megengine.core.errors import FixedAttributeError
from megengine.core.pytree import register_as_list

T = TypeVar("T")


def fixed(attribute: str, kind: type[T], doc: str, remedy: str | None = None) -> T:
    """A property that shows a private attribute of that type; to set it is refused in words that say what to use."""
    shown = property(attrgetter(attribute), doc=doc)
    return cast(
        T, shown if remedy is None else shown.setter(_refusal(attribute.rpartition(".")[2].lstrip("_"), remedy))
    )


Change = Callable[[Any, list[Any]], None]


class FixedList(list[Any]):
    """The members of a part, as a list that only methods of the part change: the others are refused, and name them.

    It is equal to a tuple of the same members too.
    """

    __slots__ = ("_change", "_owner", "_refuse", "source")

    def __init__(
        self, source: tuple[Any, ...], owner: Any, refuse: Callable[[Any, Any], NoReturn], change: Change | None
    ) -> None:
        super().__init__(source)
        self.source = source  # what it shows
        self._owner, self._refuse, self._change = owner, refuse, change

    def _refused(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse(self._owner, None)

    append = extend = insert = remove = pop = clear = reverse = _refused
    sort: Any = _refused
    __delitem__ = __iadd__ = __imul__ = _refused

    def __setitem__(self, place: Any, value: Any) -> None:
        if self._change is None or isinstance(place, slice):
            self._refused()
        members = list(self.source)
        members[place] = value
        self._change(self._owner, members)
        super().__setitem__(place, value)

    def __eq__(self, other: object) -> bool:
        return list.__eq__(self, list(other) if isinstance(other, tuple) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, (list, tuple)) else NotImplemented

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self] if isinstance(other, (list, tuple)) else NotImplemented

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


register_as_list(FixedList)


def listed(attribute: str, kind: type[T], doc: str, remedy: str, change: Change | None = None) -> T:
    """A property that shows a private tuple as a list, the same one until the tuple is another.

    `change(part, members)` is how one member is exchanged by its place.
    """
    name, shown = attribute.lstrip("_"), f"{attribute}_shown"
    refuse = _refusal(name, remedy)

    def get(self: Any) -> Any:
        last = getattr(self, shown)
        if last is None or last.source is not getattr(self, attribute):
            last = FixedList(getattr(self, attribute), self, refuse, change)
            object.__setattr__(self, shown, last)
        return last

    return cast(T, property(get, refuse, doc=doc))


def refuse_setting(kind: type, instead: dict[str, str]) -> None:
    """Let other properties of a class refuse to be set."""
    for name, remedy in instead.items():
        setattr(kind, name, getattr(kind, name).setter(_refusal(name, remedy)))


def _refusal(name: str, remedy: str) -> Any:
    def refuse(self: Any, value: Any) -> NoReturn:
        raise FixedAttributeError(f"{name} of the {type(self).__name__} {self.name!r} cannot be set; use {remedy}")

    return refuse
