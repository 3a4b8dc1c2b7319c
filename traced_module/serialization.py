"""MegEngine's path of what its files hold of a layer, and of what brings calls of its files up to date."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from megengine.core import absent
from megengine.core.errors import ArgumentError, FileFormatError
from megengine.module import Module
from megengine.traced_module.formats.tm_loaders import (
    register_functional_loader,
    register_module_loader,
    register_opdef_loader,
    register_tensor_method_loader,
)
from megengine.traced_module.ir.expr import Call

__all__ = [
    "_ModuleState",
    "_convert_kwargs_to_args",
    "_replace_args_kwargs",
    "register_functional_loader",
    "register_module_loader",
    "register_opdef_loader",
    "register_tensor_method_loader",
]


@dataclass(eq=False)
class _ModuleState:
    """A layer as its class, by name, and its attributes."""

    module: tuple[str, str]
    state: dict[str, Any]
    version: str
    obj: Module | None = None

    @classmethod
    def get_module_state(cls, module: Module) -> _ModuleState:
        kind = type(module)
        return cls((kind.__module__, kind.__qualname__), module.__getstate__(), "1.13.0", module)

    def to_module(self) -> Module:
        if self.obj is None:
            home, name = self.module
            kind = getattr(sys.modules.get(home), name, None)
            if not isinstance(kind, type) or not issubclass(kind, Module):
                raise FileFormatError(f"{home}.{name} is not a layer that is imported")
            self.obj = kind.__new__(kind)
            self.obj.__setstate__(self.state)
        return self.obj


def _convert_kwargs_to_args(
    argspecs: Callable[..., Any] | inspect.FullArgSpec,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    is_bounded: bool = False,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position as far as can be, with defaults: what graphs keep of a call.

    `is_bounded` leaves the first parameter, the object itself, out. Raises ArgumentError where one is missing.
    """
    spec = argspecs if isinstance(argspecs, inspect.FullArgSpec) else inspect.getfullargspec(argspecs)
    names = spec.args[1:] if is_bounded else spec.args
    defaults = dict(zip(spec.args[::-1], (spec.defaults or ())[::-1], strict=False))
    left = {**(spec.kwonlydefaults or {}), **kwargs}
    placed = list(args)
    for name in names[len(placed) :]:
        if name not in left and name not in defaults:
            called = getattr(argspecs, "__qualname__", "the function")
            raise ArgumentError(f"{called} missing required positional argument: {name}")
        placed.append(left.pop(name) if name in left else defaults[name])
    return tuple(placed), left


def _replace_args_kwargs(expr: Call, new_args: Sequence[Any], new_kwargs: Mapping[str, Any]) -> None:
    """Let a call have these arguments, by position as far as can be; a layer or tensor that is called comes first.

    MegEngine leaves a call as it is whose number of positional arguments and names of others stay the same.
    Raises TypeError as a wrong call would.
    """
    expr.set_args_kwargs(*new_args, **new_kwargs)


def __getattr__(name: str) -> Any:
    raise absent.missing(__name__, name)
