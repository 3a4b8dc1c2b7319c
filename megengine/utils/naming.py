"""MegEngine's registry of scopes and names of values."""

from __future__ import annotations

from collections.abc import Hashable
from contextvars import ContextVar
from typing import Any, ClassVar

from megengine.core.errors import OptionError

__all__ = ["AutoNaming"]

_scopes: ContextVar[tuple[str, ...]] = ContextVar("megengine_naming_scopes", default=())


class AutoNaming:
    """Names within scopes, each given once. The scopes are those of the running thread or task.

    Traced graphs name their nodes themselves; this is for tools that make names of their own.
    """

    _counts: ClassVar[dict[str, int]] = {}
    _names: ClassVar[dict[Hashable, str]] = {}
    _ops: ClassVar[list[Any]] = []

    @classmethod
    def push_scope(cls, scope: str) -> None:
        """Names made from now on begin with this scope too."""
        _scopes.set((*_scopes.get(), str(scope)))

    @classmethod
    def pop_scope(cls) -> None:
        """Leave the last scope. Raises OptionError outside of all scopes."""
        if not _scopes.get():
            raise OptionError("AutoNaming.pop_scope: there is no scope; call push_scope first")
        _scopes.set(_scopes.get()[:-1])

    @classmethod
    def get_scope(cls) -> str:
        """The scopes, outermost first, joined by dots; "" outside."""
        return ".".join(_scopes.get())

    @classmethod
    def gen_name(cls, x: Any) -> str:
        """A new name within the scopes, from the name of x or else from its class."""
        base = ".".join([*_scopes.get(), getattr(x, "name", None) or type(x).__name__])
        count = cls._counts[base] = cls._counts.get(base, -1) + 1
        return f"{base}[{count}]" if count else base

    @classmethod
    def record_var_name(cls, handle: Hashable, name: str) -> None:
        """Keep the name of a value; a later one replaces it."""
        cls._names[handle] = name

    @classmethod
    def get_var_name(cls, handle: Hashable) -> str | None:
        """The name kept for a value, or None."""
        return cls._names.get(handle)

    @classmethod
    def record_opnode(cls, op: Any) -> None:
        """Keep an operator, whose `name` `remove_duplicate_names` makes unique."""
        cls._ops.append(op)

    @classmethod
    def remove_duplicate_names(cls) -> None:
        """Number the kept operators that share a name: conv, conv[1], conv[2]; then forget all of them."""
        counts: dict[str, int] = {}
        for op in cls._ops:
            count = counts[op.name] = counts.get(op.name, -1) + 1
            if count:
                op.name = f"{op.name}[{count}]"
        cls._ops.clear()

    @classmethod
    def clear(cls) -> None:
        """Forget names, operators and scopes."""
        for table in (cls._counts, cls._names, cls._ops):
            table.clear()
        _scopes.set(())
