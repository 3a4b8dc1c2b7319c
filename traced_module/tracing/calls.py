"""Calls as values: functions by name, arguments in one normal form, and what a call gives."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import is_not
from typing import Any, cast

import numpy as np

from megengine.core import hooks
from megengine.core.errors import GraphError
from megengine.core.pytree import LEAF, TreeDef, flatten, register_pytree_node, unflatten
from megengine.core.sizes import is_open
from megengine.dispatch import interpose
from megengine.dispatch.public import in_place_methods
from megengine.module import Module, Sequential
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.tracing.sized import Sized, Sizing

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


_ATOMS = frozenset((bool, int, float, str, type(None)))
_HOLDERS = (Module, Tensor, list, tuple, dict)  # modules first: to ask them for their class runs Python
_LAYERS = ("megengine.module.", "megengine.quantization.observer", "megengine.quantization.fake_quant")
builtin_modules: set[type] = set()


class Static:
    """A result that is no tensor (None, a number): part of the structure of a graph's outputs."""

    def __init__(self, value: Any) -> None:
        self.value = value


register_pytree_node(Static, lambda s: ((), s.value), lambda value, _: value)


def is_leaf_module(module: Module) -> bool:
    """True for layers that are recorded as one call: those of this package, observers too, and registered ones."""
    kind = type(module)
    if kind in builtin_modules:
        return True
    return kind.__module__.startswith(_LAYERS) and kind not in (Module, Sequential)


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
    if isinstance(tensor, Sized):
        return Sized.of(tensor.sizes, tensor.spec)
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
    return flatten(unflatten(structure, supply))


def _how_to_look_into(leaves: Sequence[Any]) -> str:
    """The end of a message about results inside an object of the user's class: how to declare the class."""
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
    """The value of a node that is computed from known shapes of others (`x.shape[0] * 2`); None for other nodes."""
    if not node.expr.from_shapes:
        return None
    values: dict[int, Tensor] = {}
    with interpose(Sizing()):
        for expr in _shape_arithmetic(node):
            if isinstance(expr, Apply):
                leaves: list[Tensor] = [_shape_as_value(expr)]
            else:
                leaves, _ = result_leaves(run_call(expr, [values[id(n)] for n in expr.inputs]), expr)
            values.update((id(n), leaf) for n, leaf in zip(expr.outputs, leaves, strict=True))
    found = values[id(node)]
    return None if found._value is None and not isinstance(found, Sized) else found


def _shape_as_value(expr: Apply) -> Tensor:
    """A shape; of lengths that values tell, their formulas."""
    spec = expr.inputs[0].spec
    if is_open(spec.shape):
        return Sized.of(spec.shape, expr.outputs[0].spec)
    return Tensor._wrap(np.array(spec.shape, np.int32), device=spec.device)


def _shape_arithmetic(node: Node) -> list[Any]:
    """The expressions that compute a node from shapes alone, in order."""
    exprs: dict[int, Any] = {}
    todo = [node.expr]
    while todo:
        expr = todo.pop()
        if id(expr) not in exprs:
            exprs[id(expr)] = expr
            todo += [] if isinstance(expr, Apply) else [n.expr for n in expr.inputs]  # an op that takes a shape
    return sorted(exprs.values(), key=lambda e: e.position)


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
    values = seen.values()
    return [v for v in values if isinstance(v, Module)], [v for v in values if issubclass(type(v), Tensor)]
