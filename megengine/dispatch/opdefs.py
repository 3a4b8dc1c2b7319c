"""Functions that represent MegEngine's op classes (`Elemwise`, `Reduce`, ...), which graphs and files call by name.

Their records are separate from those of public functions and are loaded when a program or a file first names one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from megengine.core import late
from megengine.core.errors import OptionError, nearest
from megengine.core.text import counted
from megengine.dispatch.public import Exported, PublicFunction, watched_function

HOME = "megengine.core._imperative_rt.ops"  # where MegEngine's files find the classes
PREFIX = f"{HOME}."
COPY = f"{PREFIX}Copy"  # what graphs hold for `x.to(device)`
_functions: dict[str, Exported] = {}
_states: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {}
_calls: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]] = {}


def declare(owner: str, name: str, function: Callable[..., Any], *, state: Callable[[dict], dict]) -> Exported:
    """Register the function of an op class, or of one mode of it (`owner` is then `HOME` and the class).

    `state` maps the options of a call to what MegEngine stores of such an op in a file.
    """
    record = PublicFunction(owner, name, function, inspect.signature(function))
    _functions[record.qualified] = watched_function(record)
    _states[record.qualified] = state
    return _functions[record.qualified]


def declare_class(name: str, call: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]) -> None:
    """Register an op class: `call` maps what a file stores of such an op to the function and its options."""
    _calls[name] = call


def find(qualified: str) -> Exported | None:
    """The function of that name; None if there is no such op class."""
    if qualified not in _functions and qualified.startswith(PREFIX):
        late.ensure(qualified)
    return _functions.get(qualified)


def class_name(qualified: str) -> str:
    """The class that a function represents: the function is named after it, or after one of its modes."""
    return qualified.removeprefix(PREFIX).partition(".")[0]


def state_of(qualified: str, options: dict[str, Any]) -> dict[str, Any]:
    """What MegEngine stores of an op, from the options of a call of its function."""
    return _states[qualified](options)


def call_of(name: str, state: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name of the function, and options of the call, for what a file keeps of an op of that class.

    Raises OptionError for a class that does not exist, or an option that it does not take.
    """
    if name not in _calls:
        late.ensure(f"{PREFIX}{name}")
    if name not in _calls:
        raise OptionError(f"expected one of {counted(len(_calls), 'op class')}{nearest(name, _calls)}")
    return _calls[name](state)
