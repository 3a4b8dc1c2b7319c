"""What graphs, expressions and nodes do with the help of code that stands on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Methods:
    """Functions by name: `methods.replace_node(graph, {old: new})`.

    `megengine.traced_module.methods` hands them in, so that the core imports nothing above it.
    """

    def hand_in(self, **functions: Callable[..., Any]) -> None:
        """Take these functions, which methods of the same names call."""
        self.__dict__.update(functions)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"no function {name!r} was handed in; expected megengine.traced_module.methods to do so")


methods = Methods()
