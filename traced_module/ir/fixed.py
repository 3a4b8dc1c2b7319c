"""Attributes that only methods change: to set one is refused, and the method is named."""

from __future__ import annotations

from typing import Any, NoReturn

from megengine.core.errors import FixedAttributeError


def refuse_setting(kind: type, instead: dict[str, str]) -> None:
    """Let properties of a class refuse to be set, in words that say what to use."""
    for name, remedy in instead.items():
        setattr(kind, name, getattr(kind, name).setter(_refusal(name, remedy)))


def _refusal(name: str, remedy: str) -> Any:
    def refuse(self: Any, value: Any) -> NoReturn:
        raise FixedAttributeError(f"{name} of the {type(self).__name__} {self.name!r} cannot be set; use {remedy}")

    return refuse
