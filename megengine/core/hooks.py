"""Hooks of tracing: calls of public functions and modules, attribute reads on modules, reads of values and shapes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import Any

TRUTH = "the truth value"  # what `bool(tensor)` reads


class TraceHooks:
    """Callbacks of a tracer; the default ones record nothing. `run()` performs the real call."""

    def function(self, record: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """A public function or Tensor method was called from outside any other public function."""
        return run()

    def module(self, module: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """A module was called."""
        return run()

    def attribute(self, module: Any, name: str, value: Any) -> Any:
        """An attribute of a module was read; the result is what the reader gets."""
        return value

    def shape(self, tensor: Any) -> Any:
        """The shape of a tensor was read; the result is what the reader gets, None for the plain tuple."""

    def rebind(self, tensor: Any, new: Any) -> None:
        """`tensor` takes the value `new`: an operator in place, or item assignment."""

    def built(self, tensor: Any, data: Any, dtype: Any, device: Any) -> Any:
        """`tensor` was made from data; the result is its value in the graph, None if nothing in the data is traced."""

    def alias(self, tensor: Any) -> Any:
        """Another tensor object that stands for the same value."""
        return tensor

    def replays(self, expr: Any) -> None:
        """While a graph runs, the calls that follow are made by this expression of it; None after the run."""

    def applied(self, expr: Any, inputs: Any, attrs: Any, results: Any) -> Any:
        """A graph that runs has applied this op with these attributes; the result is what the graph goes on with."""
        return results

    def length(self, tensor: Any) -> None:
        """Python reads the length of a tensor's first axis: `len(x)`, `for row in x`."""

    def value(self, tensor: Any, what: str, advice: str = "") -> None:
        """Python reads the value of a tensor, or makes one that the graph cannot make; `what` names the operation."""


active: ContextVar[TraceHooks | None] = ContextVar("megengine_trace_hooks", default=None)


class _Listening:
    """A class, since a generator takes four times as long, and each traced call enters one or two."""

    __slots__ = ("hooks", "token")

    def __init__(self, hooks: TraceHooks | None) -> None:
        self.hooks = hooks

    def __enter__(self) -> None:
        self.token: Token[TraceHooks | None] = active.set(self.hooks)

    def __exit__(self, *error: object) -> None:
        active.reset(self.token)


def listening(hooks: TraceHooks | None) -> AbstractContextManager[None]:
    """Activate these hooks in the body."""
    return _Listening(hooks)


def unheard() -> AbstractContextManager[None]:
    """No hooks in the body: the inside of what was recorded as one call."""
    return _Listening(None)
