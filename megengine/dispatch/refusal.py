"""Errors of calls: they show the call, and name the argument of a wrong type.

All of this runs after a call has failed; calls that succeed do not pay for it.
"""

from __future__ import annotations

import collections.abc
import contextlib
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from megengine.core.calls import called, shown
from megengine.core.errors import (
    ArgumentError,
    IndexOutOfRangeError,
    MegEngineError,
    MissingNameError,
    NotEnoughMemoryError,
    nearest,
)
from megengine.core.types import Shaped
from megengine.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")

# what Python, NumPy and native code raise for an unsuitable argument
FOREIGN = (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError)
# names of arguments in PyTorch and NumPy -> MegEngine's name
_WORDS = {"dim": "axis", "dims": "axis", "keepdim": "keepdims", "input": "inp", "tensors": "inps", "target": "label"}


def explained(
    name: str,
    function: Callable[..., Any],
    exc: Exception,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    signature: inspect.Signature | None = None,
) -> MegEngineError:
    """The error to raise for a call that a foreign error ended; it names the argument if it can be determined."""
    call = called(name, args, kwargs)
    if isinstance(exc, MemoryError):
        return NotEnoughMemoryError(f"{name}: there is not enough memory: {exc}; got {call}")
    signature = signature or inspect.signature(function)
    plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    expected = str(signature.replace(parameters=plain, return_annotation=signature.empty))
    problem = _misplaced(signature, exc, args, kwargs) or _unfit(function, signature, exc, args, kwargs) or _plain(exc)
    kind = IndexOutOfRangeError if type(exc) is IndexError else ArgumentError
    return kind(f"{name}: {problem}; got {call}; expected {name}{expected}")


def failure(
    name: str,
    function: Callable[..., Any],
    exc: Exception,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    signature: inspect.Signature | None = None,
    *,
    verb: str = "calling",
) -> Exception:
    """The error to raise for an exception in a call: an error of this package whose note or text shows the call."""
    if isinstance(exc, MegEngineError):
        exc.add_note(f"while {verb} {called(name, args, kwargs)}")
    elif isinstance(exc, FOREIGN):
        cause, exc = exc, explained(name, function, exc, args, kwargs, signature)
        exc.__cause__ = cause
    return exc


def _plain(exc: Exception) -> str:
    """The text of the foreign error, reworded if it would name an internal detail."""
    text = str(exc) or type(exc).__name__
    if isinstance(exc, KeyError):
        return f"no entry {text}"
    if isinstance(exc, OverflowError):
        return "a number is too large for its type"
    if text.startswith("ufunc ") and "not supported for the input types" in text:
        return "it is not defined for tensors of this dtype"
    return text


def _misplaced(signature: inspect.Signature, exc: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """What does not fit the signature: an unknown, missing or surplus argument; empty if all fit."""
    named = [n for n, p in signature.parameters.items() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    passed_on = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())  # mostly to the base class
    for name in kwargs:
        if name in named or (passed_on and not isinstance(exc, TypeError)):
            continue
        word = _WORDS.get(name)
        hint = f"; did you mean {word!r}?" if word in named else nearest(name, named)
        if not passed_on or hint or f"keyword argument {name!r}" in str(exc):
            return f"unexpected keyword argument {name!r}{hint}"
    try:
        signature.bind(*args, **kwargs)
    except TypeError as exc:
        return str(exc)
    return ""


def _unfit(
    function: Callable[..., Any],
    signature: inspect.Signature,
    exc: Exception,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> str:
    """The first argument of a kind that its annotation excludes; empty if there is none."""
    hints = _hints(inspect.unwrap(function))
    no_array = "'numpy.ndarray' object has no attribute" in str(exc)  # where a tensor's method was called
    for name, value in signature.bind(*args, **kwargs).arguments.items():
        hint = hints.get(name, Any)
        kind = signature.parameters[name].kind
        several = {inspect.Parameter.VAR_POSITIONAL: list, inspect.Parameter.VAR_KEYWORD: dict.values}.get(kind)
        for item in several(value) if several else [value]:
            if not fits(item, hint) or (no_array and hint is Tensor and isinstance(item, np.ndarray)):
                return f"{name} is {shown(item)}; expected {_kinds(hint)}"
    return ""


def _lacked(exc: MissingNameError, values: Iterable[Any]) -> bool:
    """Whether one of the arguments is what lacks the name: code of the user's may lack others."""
    return any(f"{type(value).__name__!r} object has no attribute" in str(exc) for value in values)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations by argument, without those that only type checkers can resolve."""
    found = {}
    for name, note in inspect.get_annotations(function).items():
        alone = type(name, (), {"__annotations__": {name: note}})
        with contextlib.suppress(NameError, TypeError, AttributeError):
            found |= typing.get_type_hints(alone, getattr(function, "__globals__", None))
    return found


_PLAIN: dict[Any, tuple[Any, str]] = {
    bool: ((bool, np.bool_), "True or False"),
    int: (numbers.Integral, "an integer"),
    float: (numbers.Real, "a number"),
    complex: (numbers.Number, "a number"),
    str: (str, "a string"),
    type(None): (type(None), "None"),
    Tensor: ((Tensor, np.ndarray), "a tensor"),
    Shaped: ((Tensor, np.ndarray, np.generic), "a tensor"),
}


def fits(value: Any, hint: Any) -> bool:
    """Whether an annotation allows a value; True if that cannot be decided."""
    if hint is Any:
        return True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, h) for h in typing.get_args(hint))
    if hint in (int, float) and isinstance(value, Tensor):
        return value.size == 1
    if hint in _PLAIN:
        return isinstance(value, _PLAIN[hint][0])
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return callable(value)
    kind = origin or hint
    if not isinstance(kind, type) or kind is object or getattr(kind, "_is_protocol", False):
        return True
    if isinstance(value, (str, bytes)) and kind not in (str, bytes):
        return False  # a string is a sequence of strings, which no function means
    if isinstance(value, (Tensor, np.ndarray)) and kind in (tuple, list, collections.abc.Sequence):
        return value.ndim >= 1
    if not isinstance(value, kind):
        return False
    parts = typing.get_args(hint)
    if isinstance(value, collections.abc.Mapping) and len(parts) == 2:
        return all(fits(v, parts[1]) for v in value.values())
    if kind is tuple and Ellipsis not in parts and parts and len(parts) != len(value):
        return False
    if kind in (tuple, list, collections.abc.Sequence) and parts and isinstance(value, (tuple, list)):
        each = parts if kind is tuple and Ellipsis not in parts else [parts[0]] * len(value)
        return all(fits(v, h) for v, h in zip(value, each, strict=True))
    return True


def _kinds(hint: Any) -> str:
    """An annotation in words."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        words = list(dict.fromkeys(_kinds(h) for h in typing.get_args(hint)))
        words.sort(key=lambda word: word == "None")
        return " or ".join(words)
    if hint in _PLAIN:
        return _PLAIN[hint][1]
    origin, parts = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is collections.abc.Callable:
        return "something to call"
    if origin in (tuple, list, collections.abc.Sequence, collections.abc.Iterable) and parts:
        if parts[0] is Any:
            return "a sequence of arrays" if origin is collections.abc.Iterable else "a sequence of numbers"
        many = f"{len(parts)} of " if origin is tuple and Ellipsis not in parts else "several of "
        return f"{many}({_kinds(parts[0])})"
    return getattr(origin, "__name__", str(origin))


def own(cls: type) -> bool:
    """Whether a class belongs to this package and not to a user."""
    return cls.__module__.startswith("megengine.")


@functools.cache
def _outermost(cls: type) -> tuple[str, Callable[..., None]]:
    """Name and constructor of the class of this package that a user named or derives from."""
    ours = [c for c in cls.__mro__ if own(c)]
    return ours[0].__name__, next(c.__dict__["__init__"] for c in ours if "__init__" in c.__dict__)


@functools.cache
def _checkable(function: Callable[..., Any]) -> tuple[inspect.Signature, dict[str, Any]]:
    """Signature and annotations, without those with bool, since every object has a truth value."""
    hints = typing.get_type_hints(function)
    named = [n for n, p in without_self(function).parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    return without_self(function), {n: hints[n] for n in named if bool not in (hints[n], *typing.get_args(hints[n]))}


def _plainer(value: Any) -> Any:
    """Lists and arrays as tuples, whole floats as integers: functions accept these too."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(map(_plainer, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _check_kinds(name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise ArgumentError for an argument of a kind that its annotation excludes."""
    signature, hints = _checkable(function)
    for argument, value in signature.bind(*args, **kwargs).arguments.items():
        hint = hints.get(argument, Any)
        if not fits(value, hint) and not fits(_plainer(value), hint):
            raise ArgumentError(f"{name}: {argument} is {shown(value)}; expected {_kinds(hint)}")


def constructor(function: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """`__init__` of a class of this package: a wrong argument gives an error that shows the call and the signature.

    An argument of a wrong kind is refused even if the constructor accepts it: otherwise the first call would fail.
    """

    @functools.wraps(function)
    def init(self: S, *args: P.args, **kwargs: P.kwargs) -> None:
        name, outer = _outermost(type(self))
        try:
            function(self, *args, **kwargs)
            if outer is init:
                _check_kinds(name, function, args, kwargs)
        except Exception as exc:
            if outer is not init:
                raise  # the constructor of the class that the user named explains it
            raise failure(name, function, exc, args, kwargs, without_self(function), verb="making")  # noqa: B904

    return init


def explains(function: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method of this package: a wrong argument gives an error that shows the call and the signature."""

    @functools.wraps(function)
    def method(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(self, *args, **kwargs)
        except Exception as exc:
            name = f"{type(self).__name__}.{function.__name__}"
            raise failure(name, function, exc, args, kwargs, without_self(function))  # noqa: B904

    return method


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """A function of this package that is not recorded: a wrong argument gives an error that shows the call."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as exc:
            raise failure(function.__name__, function, exc, args, kwargs)  # noqa: B904

    return call


def kinds_named(function: Callable[P, R]) -> Callable[P, R]:
    """A function or method of the tools, or `__init__`: a foreign error for which an argument of a wrong kind, name or
    number accounts becomes an ArgumentError that names it. Every other error stays as it is, with no note.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except FOREIGN as exc:
            if isinstance(exc, MegEngineError) and not isinstance(exc, MissingNameError):
                raise
            name = function.__qualname__.removesuffix(".__init__")
            own = name != function.__name__
            signature = without_self(function) if own else inspect.signature(function)
            given = args[1:] if own else args
            problem = _misplaced(signature, exc, given, kwargs) or _unfit(function, signature, exc, given, kwargs)
            if not problem or (isinstance(exc, MissingNameError) and not _lacked(exc, (*given, *kwargs.values()))):
                raise
            raise ArgumentError(f"{name}: {problem}; got {called(name, given, kwargs)}") from exc

    return call


def fields_named(cls: type[S]) -> type[S]:
    """A dataclass of the tools, whose constructor refuses as `kinds_named` says."""
    cls.__init__ = kinds_named(cls.__init__)
    return cls


def without_self(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a method as its callers see it."""
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])
