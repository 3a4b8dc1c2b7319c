"""Which public functions and option values the recorded cases call: derived by listening while our engine runs them."""

from __future__ import annotations

import inspect
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from megengine.core import hooks
from megengine.core.errors import MegEngineError

NO_OPTION = "no such option"


class Listener(hooks.TraceHooks):
    """Notes the calls that a case makes of public functions, and of layers, from outside any other."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, tuple, dict]] = []

    def function(self, record: Any, args: tuple, kwargs: dict, run: Callable[[], Any]) -> Any:
        self.calls.append((record, args, kwargs))
        return run()


def calls_of(run: Callable[[], Any]) -> list[tuple[Any, tuple, dict]]:
    """(record, args, kwargs) of every public function that `run` calls itself."""
    listener = Listener()
    with hooks.listening(listener):
        run()
    return listener.calls


def described(value: Any) -> str:
    """A plain value as text; anything else is `given`."""
    plain = value is None or isinstance(value, (bool, int, float, str))
    return repr(value) if plain or isinstance(value, tuple) else "given"


class Coverage:
    """Values of the parameters of each function that cases gave, and one call of each to try other options with."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.calls: dict[str, list[inspect.BoundArguments]] = defaultdict(list)

    def add(self, name: str, signature: inspect.Signature, args: tuple, kwargs: dict) -> None:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # a Tensor method that takes its arguments in another way
            return
        bound.apply_defaults()
        self.calls[name].append(bound)
        for parameter, value in bound.arguments.items():
            self.values[name][parameter].add(described(value))

    def gaps(self, name: str, signature: inspect.Signature, function: Callable[..., Any]) -> Iterator[str]:
        """The options of a function that no case gives, as `parameter=value`; the function itself if none calls it."""
        if name not in self.calls:
            yield "never called"
            return
        for p in signature.parameters.values():
            if p.default is p.empty or p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                continue
            found = self.values[name][p.name]
            for value in self._wanted(name, p, function):
                others = found - {repr(p.default)}
                if not (others if value == "another" else value in found):
                    yield f"{p.name}={value}"

    def _wanted(self, name: str, p: inspect.Parameter, function: Callable[..., Any]) -> Iterable[str]:
        if isinstance(p.default, bool):
            return ("True", "False")
        if isinstance(p.default, str):
            return [repr(choice) for choice in self.choices(name, p.name, function)] or (repr(p.default),)
        return (repr(p.default), "another")

    def choices(self, name: str, parameter: str, function: Callable[..., Any]) -> list[str]:
        """What the function's own error says is expected of a text option; nothing where it takes any text."""
        bound = self.calls[name][0]
        try:
            bound = bound.signature.bind(*bound.args, **bound.kwargs)
            bound.apply_defaults()
            bound.arguments[parameter] = NO_OPTION
            function(*bound.args, **bound.kwargs)
        except MegEngineError as error:
            match = re.search(r"expected (?:one of )?(.*?)(?:;|$)", str(error))
            assert match is not None, f"{name}: the error does not say what {parameter} can be: {error}"
            return re.findall(r"[A-Za-z][A-Za-z0-9_]*", re.sub(r"\b(?:or|and|one|of)\b", "", match.group(1)))
        return []
