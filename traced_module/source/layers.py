"""Layers as calls of their constructors: the arguments come from attributes; making the layer again tests them."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine import random
from megengine.core.errors import GraphError
from megengine.core.tensor.dtype import QuantDtypeMeta, meta_of
from megengine.module import Module
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.source.text import literal

# a constructor's parameter -> the attribute that keeps it, where the names differ (MegEngine's names, both)
_STORED_AS = {"constant_val": "pad_val", "dtype": "output_dtype"}
_BOOKKEEPING = frozenset({"name", "training", "quantize_disabled", "_forward_pre_hooks", "_forward_hooks"})
_MISSING = object()


@dataclass(slots=True)
class Made:
    """How a layer is made: `kind(**arguments)`, then the attributes that the constructor sets otherwise.

    `arguments` hold every parameter; those equal to `defaults` need not be written, those of `required` are
    positional. `fixes` are (path below the layer, value); a value is a literal, None, a tensor or another `Made`.
    """

    kind: type
    arguments: dict[str, Any] = field(default_factory=dict)
    defaults: dict[str, Any] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    fixes: list[tuple[tuple[str, ...], Any]] = field(default_factory=list)


def _constructor_parameters(kind: type) -> dict[str, inspect.Parameter]:
    """Parameters of a constructor; those that it passes on as *args come from its base classes."""
    parameters: dict[str, inspect.Parameter] = {}
    for cls in kind.__mro__:
        if cls is Module or "__init__" not in vars(cls):
            continue
        passes_on = False
        for parameter in list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]:
            if parameter.kind is parameter.VAR_POSITIONAL:
                passes_on = True
            elif parameter.kind is not parameter.VAR_KEYWORD:
                parameters.setdefault(parameter.name, parameter)
        if not passes_on:
            break
    parameters.pop("name", None)
    return parameters


def _value_of(layer: Any, parameter: inspect.Parameter) -> Any:
    """The argument of a constructor for a parameter, from the attributes; _MISSING if they do not hold it."""
    own = object.__getattribute__(layer, "__dict__")
    value = own.get(parameter.name, own.get(_STORED_AS.get(parameter.name, ""), _MISSING))
    if value is _MISSING:
        return _MISSING
    if isinstance(parameter.default, bool) and (value is None or isinstance(value, Tensor)):
        return value is not None  # bias=True became the bias itself
    if isinstance(value, QuantDtypeMeta) and value == meta_of(value.name):
        return value.name
    return _MISSING if isinstance(value, (Tensor, Module)) else value


def _arguments(layer: Any, parameters: Mapping[str, inspect.Parameter], where: str) -> dict[str, Any]:
    inner = [v for v in object.__getattribute__(layer, "__dict__").values() if isinstance(v, Module)]
    # of its own layers first those with more of the parameters (in ConvBn2d, the convolution)
    inner.sort(key=lambda m: -len(parameters.keys() & object.__getattribute__(m, "__dict__").keys()))
    arguments: dict[str, Any] = {}
    for name, parameter in parameters.items():
        known = [v for part in (layer, *inner) if (v := _value_of(part, parameter)) is not _MISSING]
        if known:
            arguments[name] = known[0]
        elif parameter.default is not parameter.empty:
            arguments[name] = parameter.default
        else:
            raise GraphError(
                f"{where}: a {type(layer).__name__} cannot be written as Python: nothing tells what its constructor "
                f"was given for {name!r}; keep it as an attribute of that name"
            )
    return arguments


def _shorter(value: Any, default: Any) -> Any:
    """One number for a tuple of equal integers; the default if it is the same number."""
    if type(value) is tuple and value and all(type(v) is int and v == value[0] for v in value):
        value = value[0]
    numbers = type(value) in (int, float) and type(default) in (int, float)
    return default if numbers and value == default else value


class Layers:
    """How layers are made; each class with equal arguments is tried once."""

    def __init__(self) -> None:
        self._tried: dict[Any, Any] = {}

    def made(self, layer: Any, where: str) -> Made:
        """How a layer is made. Raises GraphError, naming its path, if it cannot be made again like this."""
        parameters = _constructor_parameters(type(layer))
        full = _arguments(layer, parameters, where)
        defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        required = tuple(n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.KEYWORD_ONLY)
        full = {n: full[n] for n in sorted(full, key=lambda n: n not in required)}
        made = Made(type(layer), {n: _shorter(v, defaults.get(n)) for n, v in full.items()}, defaults, required)
        made.fixes = list(self._differences(layer, self._fresh(made.kind, made.arguments, where), (), where))
        if not all(isinstance(v, (Tensor, Made)) for _, v in made.fixes):
            made.arguments = full
            made.fixes = list(self._differences(layer, self._fresh(made.kind, full, where), (), where))
        return made

    def _fresh(self, kind: type, arguments: dict[str, Any], where: str) -> Any:
        key = (kind, repr(arguments))
        if key not in self._tried:
            source = random.generator().bit_generator
            state = source.state
            try:
                self._tried[key] = kind(**arguments)
            except Exception as exc:
                raise GraphError(
                    f"{where}: {kind.__name__}({', '.join(f'{k}={v!r}' for k, v in arguments.items())}) cannot be made "
                    f"again: {exc}"
                ) from exc
            finally:
                source.state = state  # drawing weights must not change what the user draws next
        return self._tried[key]

    def _differences(
        self, layer: Any, fresh: Any, path: tuple[str, ...], where: str
    ) -> Iterator[tuple[tuple[str, ...], Any]]:
        """What has to be set on a newly made layer. Attributes that its class does not set are left out."""
        fresh_entries = entries(fresh)
        for name, value in entries(layer).items():
            here, new = (*path, name), fresh_entries.get(name, _MISSING)
            if isinstance(value, Tensor):
                if not _alike(value, new):
                    yield here, value
            elif isinstance(value, Module) and type(new) is not type(value):
                inner = self.made(value, f"{where}.{'.'.join(here)}")
                yield here, inner
                yield from self._differences(value, self._fresh(inner.kind, inner.arguments, where), here, where)
            elif isinstance(value, Module) or _holds_parts(value):
                if type(new) is not type(value):
                    raise GraphError(
                        f"{where}: its {'.'.join(here)} ({type(value).__name__}) is not made by the constructor of "
                        f"{type(layer).__name__}, so the layer cannot be written as Python"
                    )
                yield from self._differences(value, new, here, where)
            elif new is not _MISSING and not same_value(value, new):
                try:
                    literal(value)
                except GraphError as exc:
                    raise GraphError(f"{'.'.join((where, *here))}: {exc}") from None
                yield here, value


def entries(layer: Any) -> dict[str, Any]:
    """Attributes of a layer, without those of every module; or items of a container."""
    if isinstance(layer, Module):
        own = object.__getattribute__(layer, "__dict__")
        return {k: v for k, v in own.items() if k not in _BOOKKEEPING}
    return {str(k): v for k, v in (layer.items() if isinstance(layer, dict) else enumerate(layer))}


def _holds_parts(value: Any) -> bool:
    if isinstance(value, (list, tuple, dict)):
        return any(_holds_parts(v) for v in entries(value).values())
    return isinstance(value, (Module, Tensor))


def _alike(tensor: Tensor, new: Any) -> bool:
    return (
        isinstance(new, Tensor)
        and isinstance(new, Parameter) == isinstance(tensor, Parameter)
        and new.spec.shape == tensor.spec.shape
        and new.dtype == tensor.dtype
    )


def same_value(a: Any, b: Any) -> bool:
    """Equal in value and type, in every item too."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_value, a, b))
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    try:
        return bool(a == b)
    except Exception:  # the comparison of a user's class may fail: not known to be equal
        return False


def home_of(kind: type) -> tuple[str, str]:
    """(module, name) from which a class is imported: the shortest path with this class under its name."""
    name, parts = kind.__qualname__, kind.__module__.split(".")
    for length in range(2, len(parts)):
        home = ".".join(parts[:length])
        if parts[0] == "megengine" and getattr(sys.modules.get(home), name, None) is kind:
            return home, name
    return kind.__module__, name
