"""Attributes that only methods change: to set one is refused, and the method is named."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, NoReturn, TypeVar, cast

from megengine.core.errors import FixedAttributeError

T = TypeVar("T")


def fixed(attribute: str, kind: type[T], doc: str, remedy: str | None = None) -> T:
    """A property that shows a private attribute of that type; to set it is refused in words that say what to use."""
    shown = property(attrgetter(attribute), doc=doc)
    return cast(
        T, shown if remedy is None else shown.setter(_refusal(attribute.rpartition(".")[2].lstrip("_"), remedy))
    )


def refuse_setting(kind: type, instead: dict[str, str]) -> None:
    """Let other properties of a class refuse to be set."""
    for name, remedy in instead.items():
        setattr(kind, name, getattr(kind, name).setter(_refusal(name, remedy)))


def _refusal(name: str, remedy: str) -> Any:
    def refuse(self: Any, value: Any) -> NoReturn:
        raise FixedAttributeError(f"{name} of the {type(self).__name__} {self.name!r} cannot be set; use {remedy}")

    return refuse
