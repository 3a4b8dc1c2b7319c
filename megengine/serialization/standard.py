"""Values of Python's own classes that programs store beside weights: options, dates, counts, paths."""

from __future__ import annotations

import argparse
import collections
import datetime
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megengine.core.errors import FileFormatError, brief
from megengine.serialization.pickles import Builder, Record


@dataclass(frozen=True, slots=True)
class Parts:
    """How a value is written: the arguments of its class, and what it gets then."""

    args: tuple[Any, ...] = ()
    state: dict[str, Any] | None = None
    items: Sequence[Any] | collections.deque[Any] = ()
    entries: Mapping[Any, Any] | None = None


# what makes the entries of a defaultdict that are missing: name in files -> class
_FACTORIES = {f"builtins.{kind.__name__}": kind for kind in (list, dict, set, tuple, int, float, bool)}
_DATES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone)
_PATHS = ("PosixPath", "WindowsPath")


def _attributes(kind: type) -> Builder:
    def build(record: Record) -> Any:
        state = {} if record.state is None else record.state
        if record.args or not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
            raise FileFormatError(f"pickle: a {kind.__name__} of {brief(state)}; expected values by name")
        return kind(**state)

    return build


def _arguments(kind: Callable[..., Any]) -> Builder:
    return lambda record: kind(*record.args)


def _default_dict(record: Record) -> Any:
    (name,) = record.args or (None,)
    factory = name if name is None or isinstance(name, type) else _FACTORIES.get(str(name))
    if name is not None and factory not in _FACTORIES.values():
        raise FileFormatError(f"pickle: a defaultdict of {brief(str(name))}; expected one of {', '.join(_FACTORIES)}")
    return collections.defaultdict(factory, record.entries or ())


def _deque(record: Record) -> Any:
    filled = collections.deque(*record.args)
    filled.extend(record.items or ())
    return filled


def _path(start: str, name: str) -> Builder:
    def build(record: Record) -> Any:
        import pathlib

        here = type(pathlib.Path())
        # a path of the system that wrote the file is a path of this one where both are alike
        return (here if start + name == here.__name__ else getattr(pathlib, f"Pure{name}"))(*record.args)

    return build


STANDARD: dict[str, Builder] = {
    "argparse.Namespace": _attributes(argparse.Namespace),
    "types.SimpleNamespace": _attributes(types.SimpleNamespace),
    **{f"datetime.{kind.__name__}": _arguments(kind) for kind in _DATES},
    "collections.Counter": lambda record: collections.Counter(*record.args),
    "collections.defaultdict": _default_dict,
    "collections.deque": _deque,
    **{f"builtins.{kind.__name__}": _arguments(kind) for kind in (complex, slice, range, dict)},
    **{
        f"{module}.{start}{name}": _path(start, name)
        for module in ("pathlib", "pathlib._local")  # the latter in Python 3.13
        for start in ("", "Pure")
        for name in _PATHS
    },
}


def _dated(value: Any) -> Parts:
    return Parts(value.__getinitargs__() if isinstance(value, datetime.timezone) else value.__reduce_ex__(2)[1])


def _with_default(value: collections.defaultdict) -> Parts | None:
    factory = value.default_factory
    return Parts((factory,), entries=value) if factory is None or factory in _FACTORIES.values() else None


def path_of(kind: type) -> str:
    """The name of a class in files, as MegEngine's Python knows it."""
    return f"{kind.__module__.removesuffix('._local')}.{kind.__qualname__}"


# name of a class -> how its objects are written, None as a plain dict; those of classes derived from it are not
WRITTEN: dict[str, Callable[[Any], Parts | None]] = {
    **dict.fromkeys(("argparse.Namespace", "types.SimpleNamespace"), lambda value: Parts(state=dict(vars(value)))),
    **dict.fromkeys(map(path_of, _DATES), _dated),
    "collections.Counter": lambda value: Parts((dict(value),)),
    "collections.defaultdict": _with_default,
    "collections.deque": lambda value: Parts(([], value.maxlen), items=value),
    "builtins.frozenset": lambda value: Parts((sorted(value, key=repr),)),
    "builtins.complex": lambda value: Parts((value.real, value.imag)),
    **dict.fromkeys(("builtins.slice", "builtins.range"), lambda value: Parts((value.start, value.stop, value.step))),
    **{f"pathlib.{start}{name}": lambda value: Parts(value.parts) for start in ("", "Pure") for name in _PATHS},
}
