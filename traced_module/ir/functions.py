"""Functions by name, and the arguments of calls in one normal form."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from megengine.core.errors import GraphError, nearest
from megengine.core.exports import exported
from megengine.core.pytree import TreeDef, flatten, unflatten
from megengine.dispatch import opdefs
from megengine.dispatch.public import public_functions
from megengine.module import Module
from megengine.tensor import Tensor

N = TypeVar("N")
Arguments = tuple[TreeDef, tuple[tuple[int, Any], ...]]  # nesting, (index of the leaf, constant)

_NAMED, _BY_NAME_ONLY = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
_STARS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_METHODS = ["__getitem__:index", "__setitem__:index", "__matmul__:other", "__rmatmul__:other"]
_OPERANDS = dict(method.split(":") for method in _METHODS)  # what MegEngine calls them, where it is not "value"
wrapped_functions: dict[str, Callable[..., Any]] = {}


def qualified_name(function: Callable[..., Any]) -> str:
    """Module and name under which graphs store a public or wrapped function."""
    record = getattr(function, "__public__", None)
    return record.qualified if record is not None else f"{function.__module__}.{function.__qualname__}"


@functools.lru_cache(maxsize=1024)
def _public(qualified: str) -> Callable[..., Any]:
    home, _, name = qualified.rpartition(".")
    return exported(home, name)


def function_of(qualified: str) -> Callable[..., Any]:
    """The function that a graph names: a public one or one that was wrapped; never found by importing.

    Raises GraphError with the nearest known name.
    """
    if qualified in wrapped_functions:
        return wrapped_functions[qualified]
    if qualified in public_functions:
        return _public(qualified)
    declared = opdefs.find(qualified)
    if declared is not None:
        return declared
    known = [*public_functions, *wrapped_functions]
    raise GraphError(
        f"unknown function {qualified!r}{nearest(qualified, known)}; "
        "expected a public function, or one declared with traced_module.wrap before the graph is used"
    )


@functools.lru_cache(maxsize=2048)
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


@functools.lru_cache(maxsize=256)
def method_signature(name: str) -> inspect.Signature:
    """Signature of a method of tensors, with MegEngine's names for the tensor and the operand of an operator."""
    parameters = list(signature_of(getattr(Tensor, name)).parameters.values())
    names = ["self", _OPERANDS.get(name, "value")] if name.startswith("__") else ["self"]
    renamed = [p.replace(name=n) for p, n in zip(parameters, names, strict=False)]
    return inspect.Signature([*renamed, *parameters[len(renamed) :]])


def normalized(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments in one form: all that can be is positional, defaults are filled in, keyword-only ones are named.

    Raises TypeError as a wrong call would.
    """
    plain = named_only(signature, args, kwargs)
    if plain is not None:
        return plain
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, bound.kwargs


def named_only(
    signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """The same (`normalized`) for functions whose parameters all have names; None for others, and for wrong calls."""
    positional, left = len(args), len(kwargs)
    values, named = list(args), {}
    for i, (name, parameter) in enumerate(signature.parameters.items()):
        kind = parameter.kind
        if kind is not _NAMED and kind is not _BY_NAME_ONLY:
            return None
        if kind is _NAMED and i < positional:
            if name in kwargs:
                return None
            continue
        if name in kwargs:
            value, left = kwargs[name], left - 1
        elif parameter.default is inspect.Parameter.empty:
            return None
        else:
            value = parameter.default
        if kind is _NAMED:
            values.append(value)
        else:
            named[name] = value
    return None if left or len(values) + len(named) != len(signature.parameters) else (tuple(values), named)


def flatten_arguments(
    args: Sequence[Any], kwargs: Mapping[str, Any], node_of: Callable[[Any], N | None]
) -> tuple[list[N], Arguments]:
    """Nodes among the arguments and the rest as structure and constants."""
    return arguments_of(*flatten((tuple(args), dict(kwargs))), node_of)


def arguments_of(leaves: list[Any], arg_def: TreeDef, node_of: Callable[[Any], N | None]) -> tuple[list[N], Arguments]:
    """The same for arguments that are flat already."""
    inputs, constants = [], []
    for i, leaf in enumerate(leaves):
        node = node_of(leaf)
        if node is None:
            constants.append((i, leaf))
        else:
            inputs.append(node)
    return inputs, (arg_def, tuple(constants))


def unflatten_arguments(arguments: Arguments, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) with these values in the places of the nodes."""
    leaves = list(inputs)
    for index, value in arguments[1]:
        leaves.insert(index, value)
    return unflatten(arguments[0], leaves)


def arguments_key(arguments: Arguments, *, skip: int = 0) -> tuple[Any, ...]:
    """Hashable: equal for calls with the same nesting and the same constants."""
    arg_def, constants = arguments
    return (arg_def, *((i, type(v).__name__, constant_key(v)) for i, v in constants if i >= skip))


def constant_key(value: Any) -> Any:
    """Hashable, equal for equal constants."""
    if isinstance(value, np.ndarray):
        return (value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, float):
        return value.hex()  # 0.0 is not -0.0, and nan is nan
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return value


def forward_signature(module: Module, *, with_self: bool = False) -> inspect.Signature:
    """Signature of a module's forward."""
    own = object.__getattribute__(module, "__dict__").get("forward_signature")
    if not isinstance(own, inspect.Signature):  # a submodule of a user's may be called so
        return (signature_of if with_self else _signature_without_self)(type(module).forward)
    return own if with_self else without_self(own)


@functools.lru_cache(maxsize=2048)
def _signature_without_self(function: Callable[..., Any]) -> inspect.Signature:
    return without_self(signature_of(function))


def argspec_of(signature: inspect.Signature | None) -> inspect.FullArgSpec | None:
    """A signature as MegEngine keeps it; annotations are left out."""
    if signature is None:
        return None
    kinds, parameters = inspect.Parameter, signature.parameters.values()
    plain = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]
    defaults = tuple(p.default for p in plain if p.default is not kinds.empty) or None
    named_defaults = {p.name: p.default for p in named if p.default is not kinds.empty} or None
    star, stars = (next((p.name for p in parameters if p.kind is k), None) for k in _STARS)
    return inspect.FullArgSpec(
        [p.name for p in plain], star, stars, defaults, [p.name for p in named], named_defaults, {}
    )


def without_self(signature: inspect.Signature) -> inspect.Signature:
    return signature.replace(parameters=list(signature.parameters.values())[1:])
