"""Calls that make tensors of values: `tensor(data)` here, the method `__new__` of a class in MegEngine's files."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from megengine.core.errors import FileFormatError
from megengine.core.pytree import flatten
from megengine.serialization.pickles import Global
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Call, CallFunction, Expr
from megengine.traced_module.ir.functions import Arguments, arguments_of, unflatten_arguments

METHOD = "__new__"
FUNCTION = "megengine.tensor.tensor"
_CLASSES = ("megengine.tensor.Tensor", "megengine.tensor.Parameter")
_OPTIONS = ("dtype", "device")


class _Input:
    """A placeholder for an input among the arguments."""


def makes_tensor(expr: Expr) -> bool:
    return isinstance(expr, CallFunction) and expr.qualified == FUNCTION


def with_class(expr: Call, kind: Any) -> Arguments:
    """Arguments in MegEngine's form: the class, the data, and options by name."""
    args, kwargs = expr.unflatten_args([_Input() for _ in expr.inputs])
    bound = expr.signature.bind(*args, **kwargs).arguments
    options = {name: bound[name] for name in _OPTIONS if bound.get(name) is not None}
    return _arguments((kind, bound["data"]), options)


def without_class(stored: Sequence[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """The stored constants with None in place of the class. Raises FileFormatError for another class than a tensor."""
    if not stored or stored[0][0] != 0 or not isinstance(stored[0][1], Global) or str(stored[0][1]) not in _CLASSES:
        raise FileFormatError(f"the file calls {METHOD} of something that is no class of tensors")
    return [(0, None), *stored[1:]]


def as_call(arguments: Arguments, number: int) -> Arguments:
    """Arguments of `tensor` for those of `__new__`, which has `number` inputs."""
    args, kwargs = unflatten_arguments(arguments, [_Input() for _ in range(number)])
    bound = inspect.signature(Tensor).bind(*args[1:], **kwargs).arguments
    return _arguments((bound["data"], *[bound.get(name) for name in _OPTIONS]), {})


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return arguments_of(*flatten((args, kwargs)), lambda leaf: leaf if isinstance(leaf, _Input) else None)[1]
