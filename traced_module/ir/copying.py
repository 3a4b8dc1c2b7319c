"""Copies of layers and tensors: objects of their own, which share memory until one of them takes another value."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import begin_use

_FIXED = frozenset((bool, int, float, complex, str, bytes, type, type(None), type(Ellipsis)))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")  # tables of functions, which stay the caller's
_CONTAINERS = (list, dict, OrderedDict)


def holds(value: Any) -> bool:
    return issubclass(type(value), (Module, Tensor))  # to ask an instance for its class runs Python


class Copier:
    """Copies what modules hold; what stands in two places is copied once, and stands in both.

    What cannot be copied (a lock, an open file) is shared.
    """

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}  # id of what was copied -> its copy; also the memo of `copy.deepcopy`
        self._kept: list[Any] = []  # so that no other object gets an id meanwhile

    def of(self, value: Any) -> Any:
        """The copy of a layer, a tensor, a container of them, or of anything else that a module holds."""
        kind = type(value)
        if kind in _FIXED or (kind is tuple and _FIXED.issuperset(map(type, value))):
            return value
        copied_value = self.made.get(id(value))
        if copied_value is not None:
            return copied_value
        self._kept.append(value)
        if issubclass(kind, Tensor):
            self.made[id(value)] = copied_value = copied_tensor(value)
            return copied_value
        if issubclass(kind, Module) and not hasattr(kind, "__deepcopy__"):
            self.made[id(value)] = copied_value = object.__new__(type(value))
            state = object.__getattribute__(copied_value, "__dict__")
            state.update(object.__getattribute__(value, "__dict__"))
            for name, entry in state.items():
                entry_kind = type(entry)
                if entry_kind in _FIXED:
                    continue
                if entry_kind is OrderedDict and name in _HOOKS:
                    state[name] = OrderedDict(entry) if entry else OrderedDict()
                elif entry_kind is not tuple or not _FIXED.issuperset(map(type, entry)):
                    state[name] = self.of(entry)
            return copied_value
        if kind in _CONTAINERS:
            self.made[id(value)] = copied_value = type(value)()
            if isinstance(copied_value, list):
                copied_value.extend(map(self.of, value))
            else:
                copied_value.update((k, self.of(v)) for k, v in value.items())
            return copied_value
        if kind is tuple:
            return tuple(map(self.of, value))
        try:
            return copy.deepcopy(value, self.made)
        except Exception:
            return value


def copied_tensor(tensor: Tensor) -> Tensor:
    """A tensor of the same value, class and name; its memory is shared until one of the two takes another value."""
    kind = type(tensor)
    twin: Tensor = kind.__new__(kind)
    twin._value = tensor._value if tensor._thunk is None else tensor._storage()
    twin._dtype, twin._device, twin._spec = tensor._dtype, tensor._device, tensor._spec
    if tensor.__dict__:
        twin.__dict__.update((k, copy.deepcopy(v)) for k, v in tensor.__dict__.items() if k != "grad")
    return twin


def cloned(graph: InternalGraph) -> InternalGraph:
    return copied(graph, Copier())


def copied(graph: InternalGraph, copier: Copier | None) -> InternalGraph:
    """A clone with the constants that a copier makes; without one they are shared."""
    other = InternalGraph(graph.name, graph.qualname, owner=graph._owner)
    mapping: dict[int, Any] = {}
    for expr in graph._order:
        new = expr._copy(other)
        new._inputs = inputs = tuple([mapping[id(n)] for n in expr._inputs])
        new._from_shapes = expr._from_shapes
        if copier is not None and type(new) is Constant:
            new._value = copier.of(new._value)
        nodes = []
        for node in expr._outputs:
            mapping[id(node)] = copied = node._copy(other, new)
            nodes.append(copied)
        new._outputs = tuple(nodes)
        other._order.insert(new, None)
        begin_use(new, inputs)
    other._names = graph._names.copy({id(None): None, **mapping})
    other._inputs = tuple(mapping[id(n)] for n in graph._inputs)
    other._outputs = tuple(mapping[id(n)] for n in graph._outputs)
    other._journal.counts = graph._journal.counts
    other.arguments, other.out_def = graph.arguments, graph.out_def
    other.metadata = dict(graph.metadata)
    return other
