"""Calls as values: functions by name, arguments in one normal form, and what a call gives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import is_not
from typing import Any, TypeVar, cast

import numpy as np

from megengine.core import hooks
from megengine.core.errors import GraphError, MegEngineError, OptionError, nearest
from megengine.core.exports import exported
from megengine.core.pytree import LEAF, TreeDef, flatten, register_pytree_node
from megengine.core.spec import TensorSpec
from megengine.dispatch import interpose, opdefs
from megengine.dispatch.public import in_place_methods, public_functions
from megengine.module import Module, Sequential
from megengine.tensor import DeferredValueError, Tensor
from megengine.traced_module.ir.expr import Apply, Arguments, Call, CallFunction, CallMethod, Constant
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.tracing.deferred import Deferring

T = TypeVar("T")
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_NAMED, _BY_NAME_ONLY = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY

_ATOMS = frozenset((bool, int, float, str, type(None)))
_HOLDERS = (Module, Tensor, list, tuple, dict)  # modules first: to ask them for their class runs Python
wrapped_functions: dict[str, Callable[..., Any]] = {}
builtin_modules: set[type] = set()


class Static:
    """A result that is no tensor (None, a number): part of the structure of a graph's outputs."""

    def __init__(self, value: Any) -> None:
        self.value = value


register_pytree_node(Static, lambda s: ((), s.value), lambda value, _: value)


# ---------------------------------------------------------------- functions


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
    found = opdefs.find(qualified)
    if found is not None:
        return found
    known = [*public_functions, *wrapped_functions]
    raise GraphError(
        f"unknown function {qualified!r}{nearest(qualified, known)}; "
        "expected a public function, or one declared with traced_module.wrap before the graph is used"
    )


def is_leaf_module(module: Module) -> bool:
    """True for layers that are recorded as one call: those of this package and registered ones."""
    kind = type(module)
    if kind in builtin_modules:
        return True
    return kind.__module__.startswith("megengine.module.") and kind not in (Module, Sequential)


def get_subattr(module: Any, path: str) -> Any:
    """The attribute at a dotted path; entries of lists and dicts count as attributes.

    Raises GraphError naming the part that is missing.
    """
    at, watcher = module, hooks.active.get()
    if watcher is None and "." not in path and issubclass(type(at), Module):  # the usual case
        own = object.__getattribute__(at, "__dict__")
        if path in own:
            return own[path]
    for part in path.split("."):
        try:
            if isinstance(at, Module):
                value = object.__getattribute__(at, "__dict__")[part]  # never a method, a class or a module's globals
                at = value if watcher is None else watcher.attribute(at, part, value)
            elif isinstance(at, (list, tuple)):
                at = at[int(part)]
            elif isinstance(at, Mapping):
                at = at[part]
            elif part in object.__getattribute__(at, "__dict__"):
                at = getattr(at, part)
            else:
                raise AttributeError(part)  # noqa: TRY301
        except (AttributeError, IndexError, KeyError, ValueError):
            raise GraphError(f"{type(module).__name__} has no attribute {path!r}: {part!r} is missing") from None
    return at


# ---------------------------------------------------------------- arguments


@functools.lru_cache(maxsize=2048)
def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Signature of a function, kept."""
    return inspect.signature(function)


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
    given, left = len(args), len(kwargs)
    values, named = list(args), {}
    for i, (name, parameter) in enumerate(signature.parameters.items()):
        kind = parameter.kind
        if kind is not _NAMED and kind is not _BY_NAME_ONLY:
            return None
        if kind is _NAMED and i < given:
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
    args: Sequence[Any], kwargs: Mapping[str, Any], node_of: Callable[[Any], Node | None]
) -> tuple[list[Node], Arguments]:
    """Nodes among the arguments and the rest as structure and constants."""
    return arguments_of(*flatten((tuple(args), dict(kwargs))), node_of)


def arguments_of(leaves: list[Any], arg_def: TreeDef, node_of: Callable[[Any], T | None]) -> tuple[list[T], Arguments]:
    """The same for arguments that are flat already."""
    inputs, constants = [], []
    for i, leaf in enumerate(leaves):
        node = node_of(leaf)
        if node is None:
            constants.append((i, leaf))
        else:
            inputs.append(node)
    return inputs, (arg_def, tuple(constants))


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


def callee_signature(expr: Call) -> inspect.Signature:
    """Signature of what a call calls; the object of a method is its first parameter."""
    if isinstance(expr, CallFunction):
        return signature_of(function_of(expr.qualified))
    assert isinstance(expr, CallMethod)
    if expr.method == "__call__":
        return forward_signature(expr.inputs[0].owner, with_self=True)
    return signature_of(getattr(Tensor, expr.method))


def forward_signature(module: Module, *, with_self: bool = False) -> inspect.Signature:
    """Signature of a module's forward."""
    own = object.__getattribute__(module, "__dict__").get("forward_signature")
    if not isinstance(own, inspect.Signature):  # a submodule of a user's may be called so
        return (signature_of if with_self else _signature_without_self)(type(module).forward)
    return own if with_self else without_self(own)


@functools.lru_cache(maxsize=2048)
def _signature_without_self(function: Callable[..., Any]) -> inspect.Signature:
    return without_self(signature_of(function))


def without_self(signature: inspect.Signature) -> inspect.Signature:
    """A signature without its first parameter."""
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def named_arguments(expr: Call) -> dict[str, Any]:
    """Arguments of a call by parameter name."""
    bound = callee_signature(expr).bind(*expr.args, **expr.kwargs)
    return dict(bound.arguments)


def with_argument(expr: Call, name: str | int, value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a call with one argument replaced, by its name or place.

    Raises OptionError for an unknown one, and for what is called.
    """
    signature = callee_signature(expr)
    target = isinstance(expr, CallMethod)  # the first argument is what is called
    if isinstance(name, int):
        return _with_place(expr, name, value, int(target))
    bound = signature.bind(*expr.args, **expr.kwargs)
    if target and expr.method == "__call__" and name == next(iter(signature.parameters)):
        raise OptionError(
            f"set_arg: {name!r} is the module that {expr!r} calls; put another one there by replace_module"
        )
    inside = _input_of_callee(expr, name) if name not in signature.parameters else None
    if inside is not None and isinstance(value, Node):
        return expr.unflatten_args([*expr.inputs[:inside], value, *expr.inputs[inside + 1 :]])
    if name not in signature.parameters:
        raise OptionError(f"set_arg: {expr!r} has no parameter {name!r}{_other_ways(expr, name, signature)}")
    bound.arguments[name] = value
    return bound.args, bound.kwargs


def _with_place(expr: Call, place: int, value: Any, first: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = list(expr.args)
    if not 0 <= place < len(args) - first:
        count = len(args) - first
        raise OptionError(f"set_arg: {expr!r} has {count} argument{'s' * (count != 1)} given by position; got {place}")
    args[place + first] = value
    return tuple(args), expr.kwargs


def _input_of_callee(expr: Call, name: str) -> int | None:
    """Which input of a call becomes the input of that name of the graph that it enters."""
    from megengine.traced_module.ir.queries import child_graph

    child = child_graph(expr)
    names = [] if child is None else [node.name for node in child.inputs]
    return names.index(name) if name in names[1:] else None


def _other_ways(expr: Call, name: str, signature: inspect.Signature) -> str:
    """What was meant by an argument that a call does not take."""
    from megengine.traced_module.ir.queries import child_graph

    child = child_graph(expr)
    inside = [] if child is None else [node.name for node in child.inputs[1:]]
    known = nearest(name, [*signature.parameters, *inside])
    if known or not isinstance(expr, CallMethod) or expr.method != "__call__":
        return known or f"; expected one of {', '.join(signature.parameters)}"
    return f"; a {expr.inputs[0].module_type.__name__} keeps its own settings: put another one there by replace_module"


# ---------------------------------------------------------------- running


def run_call(expr: Call, values: Sequence[Any]) -> Any:
    """Perform a call on values in place of its inputs."""
    args, kwargs = expr.unflatten_args(values)
    if isinstance(expr, CallFunction):
        return expr.func(*args, **kwargs)
    assert isinstance(expr, CallMethod)
    target, *rest = args
    if expr.method == "__call__":
        if not isinstance(target, Module):
            raise GraphError(f"{expr!r} calls a {type(target).__name__}; expected a module")
        return target(*rest, **kwargs)
    if expr.method in in_place_methods:  # in a graph all are values: another tensor takes the new one
        watcher = hooks.active.get()
        target = alias(target) if watcher is None else watcher.alias(target)
        if expr.method == "__setitem__":  # gives back nothing
            target[rest[0]] = rest[1]
            return target
    return getattr(target, expr.method)(*rest, **kwargs)


def alias(tensor: Tensor) -> Tensor:
    """Another tensor object of the same value, which is not computed for it."""
    if tensor._value is not None:
        return Tensor._of_spec(tensor._value, tensor.spec)
    return Tensor._deferred(tensor.spec, tensor._thunk)


def result_leaves(value: Any, what: object) -> tuple[list[Tensor], TreeDef]:
    """Tensors of the result of `what`, and its nesting; what is no tensor becomes part of the nesting.

    Raises GraphError when there is no tensor at all.
    """
    if type(value) is Tensor:  # the usual case
        return [value], LEAF
    leaves, structure = flatten(value)
    if not any(isinstance(leaf, Tensor) for leaf in leaves):
        raise GraphError(
            f"{what} returned {type(value).__name__} without a tensor; expected tensors, nested in lists, tuples, "
            f"dicts and named tuples{_how_to_look_into(leaves)}"
        )
    if all(isinstance(leaf, Tensor) for leaf in leaves):
        return leaves, structure
    supply = iter([leaf if isinstance(leaf, Tensor) else Static(leaf) for leaf in leaves])
    from megengine.core.pytree import unflatten

    return flatten(unflatten(structure, supply))


def _how_to_look_into(leaves: Sequence[Any]) -> str:
    """What helps where results stand in an object of the user's."""
    other = next((type(v) for v in leaves if type(v).__module__ not in ("builtins", "numpy")), None)
    if other is None:
        return ""
    how = "traced_module.pytree.register_supported_type"
    return f"; declare {other.__qualname__} with {how} for graphs to look into it"


def stand_in(node: Node) -> Tensor:
    """A tensor with the node's spec; with its value too, where that follows from shapes alone."""
    spec = cast(TensorNode, node).spec  # modules stand for themselves
    value = shape_value(node) if spec.size <= 16 else None
    return Tensor._deferred(spec) if value is None else value


def shape_value(node: Node) -> Tensor | None:
    """The value of a node that is computed from shapes of others (`x.shape[0] * 2`); None for other nodes."""
    if not node.expr._from_shapes:
        return None
    values: dict[int, Tensor] = {}
    for expr in _shape_arithmetic(node):
        if isinstance(expr, Apply):
            leaves = [Tensor._wrap(np.array(expr.inputs[0].spec.shape, np.int32))]
        else:
            leaves, _ = result_leaves(run_call(expr, [values[id(n)] for n in expr.inputs]), expr)
        values.update((id(n), leaf) for n, leaf in zip(expr.outputs, leaves, strict=True))
    return values[id(node)]


def _shape_arithmetic(node: Node) -> list[Any]:
    """The expressions that compute a node from shapes alone, in order."""
    found: dict[int, Any] = {}
    todo = [node.expr]
    while todo:
        expr = todo.pop()
        if id(expr) not in found:
            found[id(expr)] = expr
            todo += [] if isinstance(expr, Apply) else [n.expr for n in expr.inputs]  # an op that takes a shape
    return sorted(found.values(), key=lambda e: e._key)


@contextmanager
def untouched(*values: Any) -> Iterator[None]:
    """Modules among the values keep their tensors, and those their values: what a forward assigns is taken back."""
    modules, tensors = _reached([v for v in values if isinstance(v, Module)])
    kept = [(t, t._value, t._spec, t._thunk) for t in tensors]
    states = [object.__getattribute__(m, "__dict__") for m in modules]
    before = [state.copy() for state in states]
    try:
        yield
    finally:
        for state, old in zip(states, before, strict=True):
            if state.keys() == old.keys() and not any(map(is_not, state.values(), old.values())):
                continue  # mostly
            for name in [n for n, v in state.items() if isinstance(v, Tensor) and old.get(n) is not v]:
                if name in old:
                    state[name] = old[name]
                else:
                    del state[name]
        for tensor, value, spec, thunk in kept:
            if tensor._value is not value or tensor._thunk is not thunk:
                tensor._value, tensor._spec, tensor._thunk = value, spec, thunk


def holders_in(values: Iterable[Any]) -> list[Any]:
    """Modules, tensors and containers among the attributes of a module, most of which are numbers and texts."""
    return [v for v in values if type(v) not in _ATOMS and isinstance(v, _HOLDERS)]


def _reached(modules: Sequence[Module]) -> tuple[list[Module], list[Tensor]]:
    """Every module and every tensor that is reached from modules, each once."""
    todo: list[Any] = list(modules)
    seen: dict[int, Any] = {}
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, Module):
            todo += holders_in(object.__getattribute__(value, "__dict__").values())
        elif isinstance(value, (list, tuple, dict)):
            todo += holders_in(value.values() if isinstance(value, dict) else value)
    found = seen.values()
    return [v for v in found if isinstance(v, Module)], [v for v in found if issubclass(type(v), Tensor)]


def specs_of_call(expr: Call, inputs: Sequence[Node]) -> tuple[TensorSpec, ...] | None:
    """Specs that a call gives, found by running it on tensors without values; None where values are needed.

    Shapes and constants have values.
    """
    from megengine.traced_module.tracing.spec_memo import remembered_specs

    def find(values: list[Any]) -> tuple[TensorSpec, ...] | None:
        with interpose(Deferring()), untouched(*values):
            try:
                result = run_call(expr, values)
            except DeferredValueError:
                return None
            except MegEngineError as exc:
                exc.add_note(f"in {expr!r}")
                raise
        leaves, _ = result_leaves(result, expr)
        return tuple(t.spec for t in leaves)

    specs = remembered_specs(expr, inputs, find)
    if specs is not None or not any(isinstance(n.expr, Constant) for n in inputs):
        return specs
    return find([n.owner if isinstance(n, ModuleNode) else constant_or_stand_in(n) for n in inputs])


def constant_or_stand_in(node: Node) -> Tensor:
    """The value of a constant; of other nodes a tensor with their spec."""
    return node.expr.value if isinstance(node.expr, Constant) else stand_in(node)
