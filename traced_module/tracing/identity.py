"""Code that asks whether two of its values are one object, as attention does of its query and key."""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from megengine.module import Module


@functools.lru_cache(maxsize=1024)
def compares_values(kind: type[Module]) -> bool:
    """Whether a method of a class of modules compares two variables by `is` or `is not`; ours do so of no tensors."""
    classes = [cls for cls in kind.__mro__ if not cls.__module__.startswith("megengine.")]
    return any(_compares(code) for cls in classes for value in vars(cls).values() for code in _codes(value))


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a method, and of functions written inside of it."""
    value = getattr(value, "__func__", value)
    todo = [value.__code__] if isinstance(value, FunctionType) else []
    while todo:
        code = todo.pop()
        yield code
        todo += [constant for constant in code.co_consts if isinstance(constant, CodeType)]


def _compares(code: CodeType) -> bool:
    before = ["", ""]
    for step in dis.get_instructions(code):
        if step.opname == "IS_OP" and all(map(_is_variable, before[-_loads(before) :])):
            return True
        before = [*before[-1:], step.opname]
    return False


def _loads(before: Sequence[str]) -> int:
    """How many instructions load two variables: one where Python has an instruction for both."""
    return 1 if before[-1].count("LOAD_FAST") == 2 else 2


def _is_variable(name: str) -> bool:
    return name.startswith(("LOAD_FAST", "LOAD_DEREF"))
