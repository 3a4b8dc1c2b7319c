"""How deep modules nest, and room for what follows them by calling itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from megengine.core.deep_calls import levels, with_room
from megengine.core.errors import GraphError
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.tracing.calls import holders_in, is_leaf_module

P = ParamSpec("P")
R = TypeVar("R")

AROUND = 200  # calls of what calls itself, and below the innermost module


def nesting(module: Module) -> int:
    """How many levels of modules a module holds, itself included; layers are one level, whatever they hold."""
    return levels(module, lambda m: [] if is_leaf_module(m) else _parts(m))


def _parts(module: Module) -> list[Module]:
    """Modules that are attributes of a module, or in containers there."""
    found: list[Module] = []
    todo: list[Any] = [object.__getattribute__(module, "__dict__")]
    seen: set[int] = set()
    while todo:
        at = todo.pop()
        for value in holders_in(at.values() if isinstance(at, dict) else at):
            if isinstance(value, Module):
                found.append(value)
            elif not isinstance(value, Tensor) and id(value) not in seen:
                seen.add(id(value))
                todo.append(value)
    return found


def roomy(calls_a_level: int, name: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare a function of a module (or graph) that calls itself for modules inside, with so many calls a level.

    Where Python's limit of recursion is too low for a deep nest it runs with a larger stack. It raises GraphError with
    the depth where even that does not do; `name` is what users call the function.
    """

    def declare(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            module = args[0] if isinstance(args[0], Module) else getattr(getattr(args[0], "_top", None), "_owner", None)
            depth = nesting(module) if isinstance(module, Module) else 1
            try:
                return with_room(depth * calls_a_level + AROUND, lambda: function(*args, **kwargs))
            except RecursionError as exc:
                raise GraphError(
                    f"{name or function.__name__}: modules of {type(module).__name__} nest {depth} levels deep, and "
                    f"Python cannot follow them ({exc}); nest them less, or, where one calls itself, let it loop or "
                    "raise the limit with sys.setrecursionlimit"
                ) from exc

        return call

    return declare
