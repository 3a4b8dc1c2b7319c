"""Functions that call themselves for a module in a module, and Python's limit of recursion."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from megengine.core.errors import GraphError
from megengine.core.text import counted

P = ParamSpec("P")
R = TypeVar("R")


def nests(name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function that calls itself for modules inside its first argument; `name` is what users call it.

    Where modules nest too deep for Python's limit of recursion it raises GraphError.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except RecursionError as exc:
                raise GraphError(
                    f"{name or function.__name__}: modules nest too deep for Python's limit of recursion "
                    f"({counted(sys.getrecursionlimit(), 'call', spec=',')}); "
                    "nest them less, or, where one calls itself, let it loop, or "
                    "raise the limit with sys.setrecursionlimit"
                ) from exc

        return call

    return declare
