"""Specs that calls give, found without values.

They are remembered by what they depend on: the function or layer, the arguments, the inputs' specs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Literal

from megengine.core import hooks
from megengine.core.errors import MegEngineError
from megengine.core.pytree import TreeDef, unflatten
from megengine.core.sizes import is_open, names_of
from megengine.core.spec import TensorSpec
from megengine.dispatch import interpose
from megengine.dispatch.apply import active_interposers
from megengine.dispatch.public import PublicFunction, public_functions
from megengine.module import Module
from megengine.tensor import DeferredValueError, Tensor
from megengine.traced_module.ir.expr import Call, CallFunction, CallMethod, Constant
from megengine.traced_module.ir.functions import arguments_key, constant_key
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.tracing.calls import result_leaves, run_call, stand_in, untouched
from megengine.traced_module.tracing.deferred import Deferring, PendingCall
from megengine.traced_module.tracing.lengths import counted_in, kept_lengths

Specs = tuple[TensorSpec, ...] | None
Key = tuple[Any, ...]
_known: dict[Key, tuple[Specs]] = {}
_results: dict[Key, TensorSpec | Literal[False]] = {}  # of layers and functions that return a tensor; see `_learned`
_LIMIT = 8192
_PLAIN = frozenset((int, float, bool, str, type(None)))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def specs_of_call(expr: Call, inputs: Sequence[Node], taken: Collection[str] = ()) -> Specs:
    """Specs that a call gives, found by running it on tensors without values; None where values are needed.

    Lengths that it counts keep the names that they have, unless these are `taken`.

    Shapes and constants have values. Calls whose result depends on more than specs are always made: those of the
    user's functions and layers, of layers that hold others or have hooks, and those on values that follow from shapes.
    """
    values = [n.owner if isinstance(n, ModuleNode) else stand_in(n) for n in inputs]
    key = None if active_interposers() else _key(expr, values)
    known = _recalled(_known, key)
    if known is None:
        known = (_specs_found(expr, values),)
        _keep(_known, key, known)
    specs = known[0]
    by_values = specs is None or any(is_open(spec.shape) for spec in specs)
    if by_values and any(isinstance(n.expr, Constant) for n in inputs):
        both = zip(inputs, values, strict=True)
        specs = _specs_found(expr, [n.expr.value if isinstance(n.expr, Constant) else value for n, value in both])
    return None if specs is None else kept_lengths(expr, specs, inputs, taken)


def _specs_found(expr: Call, values: list[Any]) -> Specs:
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


def layer_result(expr: Call, values: list[Any], run: Callable[[], Any]) -> Any:
    """The result of a layer's call `run()` while it is traced; a tensor without a value where its spec is known.

    `values` are the layer and its tensor arguments.
    """
    layer, *tensors = values
    assigns = layer.training and any(type(v) is Tensor for v in object.__getattribute__(layer, "__dict__").values())
    deferring = all(type(i) is Deferring for i in active_interposers())
    key = _key(expr, values) if deferring and not assigns else None
    spec = _recalled(_results, key)
    if spec is not None:
        return PendingCall(run, tuple(tensors)).result(spec)
    result = run()
    if type(result) is Tensor:
        _keep(_results, key, result.spec)
    return result


def function_spec(record: PublicFunction, leaves: list[Any], structure: TreeDef) -> TensorSpec | None:
    """The spec of the tensor that a call of a public function gives.

    None where it does not follow from specs: of functions that ask for values of these arguments, or give anything
    else; and of a call that fails. `leaves` and `structure` are its arguments in normal form, tensors or nodes among
    them.
    """
    key = _function_key(record, leaves, structure)
    if key is None:
        return None
    recalled = _recalled(_results, key)
    if recalled is None:
        recalled = _learned(record, leaves, structure)
        if recalled is not None:
            _keep(_results, key, recalled)
    return recalled or None


def _learned(record: PublicFunction, leaves: list[Any], structure: TreeDef) -> TensorSpec | Literal[False] | None:
    """What `function_spec` remembers: False where the spec does not follow from specs; None for a call that fails."""
    values = [leaf if type(leaf) in _PLAIN else Tensor._deferred(leaf._spec) for leaf in leaves]
    args, kwargs = unflatten(structure, values)
    try:
        with hooks.unheard():
            result = record.function(*args, **kwargs)
    except DeferredValueError:
        return False
    except Exception:  # the real call raises it
        return None
    follows = type(result) is Tensor and result._value is None
    if not follows or counted_in([result.spec], names_of([v.spec.shape for v in values if isinstance(v, Tensor)])):
        return False
    return result.spec


def _function_key(record: PublicFunction, leaves: list[Any], structure: TreeDef) -> Key | None:
    """All that the spec of the result of a function depends on if it asks for no value; None where it may be more."""
    if not record.by_spec or record.in_place or not all([type(i) is Deferring for i in active_interposers()]):
        return None
    key: list[Any] = [record.qualified, structure]
    known = True
    for leaf in leaves:
        kind = type(leaf)
        if kind in _PLAIN:
            key += (kind, constant_key(leaf))
        elif kind is TensorNode and leaf.expr.from_shapes:
            return None  # its value is known: calls that want a shape ask for it
        elif kind is TensorNode or (kind is Tensor and leaf._value is None):
            key.append(leaf._spec)
            known = False
        else:
            return None
    return None if known else tuple(key)


def _recalled(memo: dict[Key, Any], key: Key | None) -> Any:
    try:
        return None if key is None else memo.get(key)
    except TypeError:  # it holds what cannot be hashed; to ask before would hash it twice, which takes as long again
        return None


def _keep(memo: dict[Key, Any], key: Key | None, value: Any) -> None:
    if key is None:
        return
    if len(memo) >= _LIMIT:
        memo.clear()
    with suppress(TypeError):  # as above
        memo[key] = value


def _key(expr: Call, values: list[Any]) -> Key | None:
    """All that the specs of a call's results depend on; None where that is not known."""
    callee, tensors = _called(expr, values)
    if callee is None or not all(isinstance(t, Tensor) and t._value is None for t in tensors):
        return None
    return (*callee, arguments_key(expr.arguments), *[t.spec for t in tensors])


def _called(expr: Call, values: list[Any]) -> tuple[Key | None, list[Any]]:
    if isinstance(expr, CallFunction):
        return ((expr.qualified,) if expr.qualified in public_functions else None), values
    if isinstance(expr, CallMethod) and expr.method != "__call__":
        return (expr.method, "method"), values
    return _layer_key(values[0]), values[1:]


def _layer_key(layer: Any) -> Key | None:
    """Class and state of one of our layers, tensors by their specs."""
    if not type(layer).__module__.startswith("megengine.module."):
        return None
    key: list[Any] = [type(layer)]
    for name, value in object.__getattribute__(layer, "__dict__").items():
        kind = type(value)
        if kind in _PLAIN:
            key += (name, kind, value) if name != "name" else ()
        elif name in _HOOKS:
            if value:
                return None
        elif issubclass(kind, Tensor):
            key += (name, value.spec)
        elif issubclass(kind, Module):
            return None
        elif kind is tuple and _PLAIN.issuperset(map(type, value)):
            key += (name, *map(type, value), value)
        elif name != "name":
            key += (name, _typed(value))
    return tuple(key)


def _typed(value: Any) -> Any:
    """Equal for values that are equal and of equal types: 1, 1.0 and True differ."""
    return tuple(map(_typed, value)) if type(value) is tuple else (type(value), value)
