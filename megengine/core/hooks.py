"""The one place where tracing listens: calls of public functions, of modules, and attribute reads on modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class TraceHooks(Protocol):
    """What a tracer implements. `run()` performs the real call."""

    def function(self, record: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """A public function or Tensor method was called from outside any other public function."""

    def module(self, module: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        """A module was called."""

    def attribute(self, module: Any, name: str, value: Any) -> Any:
        """An attribute of a module was read; the result is what the reader gets."""

    def shape(self, tensor: Any) -> Any:
        """The shape of a tensor was read; the result is what the reader gets, None for the plain tuple."""

    def rebind(self, tensor: Any, new: Any) -> None:
        """`tensor` takes the value `new`: an operator in place, or item assignment."""

    def alias(self, tensor: Any) -> Any:
        """Another tensor object that stands for the same value."""

    def value(self, tensor: Any, what: str, advice: str = "") -> None:
        """Python reads the value of a tensor, or makes one that the graph cannot; `what` names how."""


active: ContextVar[TraceHooks | None] = ContextVar("megengine_trace_hooks", default=None)


@contextmanager
def listening(hooks: TraceHooks | None) -> Iterator[None]:
    """Let these hooks hear what happens in the body."""
    token = active.set(hooks)
    try:
        yield
    finally:
        active.reset(token)


def unheard() -> AbstractContextManager[None]:
    """Nobody hears the body: the inside of what was recorded as one call."""
    return listening(None)
