"""`@public`: the mark of a function that traces and files know by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from megengine.core import hooks
from megengine.core.errors import MegEngineError, MissingNameError, OptionError
from megengine.dispatch.apply import active_interposers
from megengine.dispatch.refusal import FOREIGN, called, explained
from megengine.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True, eq=False)
class PublicFunction:
    """A public function: where it is found, its signature, and the names under which Tensor has it."""

    home: str
    name: str
    function: Callable[..., Any]
    signature: inspect.Signature
    methods: tuple[str, ...] = ()
    is_method: bool = False
    random: bool = False  # two calls with the same arguments differ
    in_place: bool = False  # a method after which the tensor has the result as its value

    @property
    def qualified(self) -> str:
        """Home and name, as files store it."""
        return f"{self.home}.{self.name}"


public_functions: dict[str, PublicFunction] = {}
in_place_methods: set[str] = set()


def watched_function(record: PublicFunction) -> Callable[..., Any]:
    """The function as it is exported: a tracer hears of calls that no other public function makes."""
    function = record.function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        watcher = hooks.active.get()
        if watcher is None:
            try:
                return function(*args, **kwargs)
            except MegEngineError as exc:
                exc.add_note(f"while calling {called(record.name, args, kwargs)}")
                raise
            except FOREIGN as exc:
                raise explained(record.name, function, exc, args, kwargs, record.signature) from exc

        def run() -> Any:
            token = hooks.active.set(None)  # not a `with`: this is the hot path of tracing
            try:
                return function(*args, **kwargs)
            except MegEngineError as exc:
                exc.add_note(f"while calling {called(record.name, args, kwargs)}")
                raise
            except FOREIGN as exc:
                raise explained(record.name, function, exc, args, kwargs, record.signature) from exc
            finally:
                hooks.active.reset(token)

        return watcher.function(record, args, kwargs, run)

    call.__public__ = record  # type: ignore[attr-defined]
    return call


def _assigning(call: Callable[..., Any]) -> Callable[..., Any]:
    """The method that gives the tensor itself the result of `call` as its value, whatever shape and dtype it has."""

    @functools.wraps(call)
    def assign(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        new = call(self, *args, **kwargs)
        if not isinstance(self, Tensor):  # a node of a graph, which is no place for values
            return new
        watcher = hooks.active.get()
        if watcher is not None:
            watcher.rebind(self, new)
        for interposer in active_interposers():
            interposer.rebind(self, new)
        self._reset(new)
        return self

    return assign


def public(
    *, home: str, methods: tuple[str, ...] = (), in_place: tuple[str, ...] = (), random: bool = False
) -> Callable[[F], F]:
    """Declare a public function of module `home`; `methods` are names under which Tensor gets it too.

    `in_place` are names of methods that give the tensor itself the result as its value: `x += 1`, `x[0] = 1`.
    `random` marks one that draws anew at each call: passes never merge two calls of it.

    Tracing records calls of it as one expression; what it calls itself is not recorded again.
    """

    def declare(function: F) -> F:
        signature = inspect.signature(function)
        record = PublicFunction(home, function.__name__, function, signature, (*methods, *in_place), random=random)
        if record.qualified in public_functions:
            raise OptionError(f"{record.qualified} is declared twice; choose another name")
        public_functions[record.qualified] = record
        for name in (*methods, *in_place):
            method = PublicFunction(
                "megengine.tensor.Tensor", name, function, signature, is_method=True, in_place=name in in_place
            )
            call = watched_function(method)
            setattr(Tensor, name, _assigning(call) if method.in_place else call)
        in_place_methods.update(in_place)
        return watched_function(record)  # type: ignore[return-value]

    return declare


def retract(qualified: str) -> None:
    """Take a public function and its Tensor methods away: for tests that add one at run time."""
    record = public_functions.pop(qualified)
    for name in record.methods:
        delattr(Tensor, name)


def exports(home: str) -> dict[str, Callable[..., Any]]:
    """Name -> function of everything declared for a module: what its face exports."""
    return {r.name: watched_function(r) for r in public_functions.values() if r.home == home}


def exported(home: str, name: str) -> Callable[..., Any]:
    """One function of a face, also if it was declared after the face was imported. Raises AttributeError."""
    found = exports(home)
    if name not in found:
        raise MissingNameError(f"module {home!r} has no attribute {name!r}", name, lambda: found)
    return found[name]
