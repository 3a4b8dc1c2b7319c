"""Nested containers as a list of leaves and a frozen description of the nesting."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

_NODES: dict[type, tuple[Callable[[Any], tuple[tuple, Any]], Callable[[Any, tuple], Any]]] = {}


@dataclass(frozen=True, slots=True)
class TreeDef:
    """How leaves nest. Equal and hashable by structure; `kind` None marks a leaf."""

    kind: type | None
    aux: Any = None
    children: tuple[TreeDef, ...] = ()
    _hash: int | None = field(default=None, init=False, repr=False, compare=False)
    _leaves: int | None = field(default=None, init=False, repr=False, compare=False)

    def __hash__(self) -> int:
        if self._hash is None:  # kept: structures are keys of the memos of calls
            object.__setattr__(self, "_hash", hash((self.kind, self.aux, self.children)))
        assert self._hash is not None
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return TreeDef, (self.kind, self.aux, self.children)  # hashes differ from process to process

    @property
    def num_leaves(self) -> int:
        """Leaves below this node."""
        if self._leaves is None:
            count = 1 if self.kind is None else sum([c.num_leaves for c in self.children])
            object.__setattr__(self, "_leaves", count)
        assert self._leaves is not None
        return self._leaves


LEAF = TreeDef(None)


def register_pytree_node(
    kind: type, flatten: Callable[[Any], tuple[tuple, Any]], unflatten: Callable[[Any, tuple], Any]
) -> None:
    """Teach flatten / unflatten a container: `flatten(x) -> (children, aux)`, `unflatten(aux, children) -> x`."""
    _NODES[kind] = (flatten, unflatten)


_SHOWN_AS: dict[type, type] = {}


def register_as_list(kind: type[list]) -> None:
    """Let a kind of lists be taken for lists."""
    _NODES[kind], _SHOWN_AS[kind] = _NODES[list], list


register_pytree_node(list, lambda x: (tuple(x), None), lambda _, c: list(c))
register_pytree_node(tuple, lambda x: (x, None), lambda _, c: tuple(c))
register_pytree_node(
    OrderedDict, lambda x: (tuple(x.values()), tuple(x)), lambda keys, c: OrderedDict(zip(keys, c, strict=True))
)


class SortedKeys(tuple):
    """Keys of a dict in the order of its leaves; `original` is their order in the dict, which is built in it again."""

    original: tuple[Any, ...]


def keys_in_order(values: dict[Any, Any]) -> tuple[Any, ...]:
    """The keys in the order of the leaves: sorted, as in MegEngine, or unchanged if they cannot be sorted."""
    original = tuple(values)
    if len(original) < 2:
        return original
    try:
        keys = SortedKeys(sorted(original))
    except TypeError:
        return original
    if keys == original:
        return original
    keys.original = original
    return keys


def _dict_parts(values: dict[Any, Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    keys = keys_in_order(values)
    return tuple([values[key] for key in keys]), keys


def _dict_of(keys: tuple[Any, ...], children: tuple[Any, ...]) -> dict[Any, Any]:
    values = dict(zip(keys, children, strict=True))
    return {key: values[key] for key in keys.original} if type(keys) is SortedKeys else values


register_pytree_node(dict, _dict_parts, _dict_of)
register_pytree_node(slice, lambda s: ((s.start, s.stop, s.step), None), lambda _, c: slice(*c))


def flatten(tree: Any) -> tuple[list[Any], TreeDef]:
    """Leaves from left to right (those of dicts by sorted keys, as in MegEngine) and the structure."""
    leaves: list[Any] = []
    return leaves, _walk(tree, leaves)


@functools.lru_cache(maxsize=64)
def _of_leaves(kind: type, count: int) -> TreeDef:
    return TreeDef(kind, None, (LEAF,) * count)


_NO_KEYS = TreeDef(dict, ())


@functools.lru_cache(maxsize=64)
def _of_call(count: int) -> TreeDef:
    """Arguments of a call: `count` by position, none by name."""
    return TreeDef(tuple, None, (_of_leaves(tuple, count), _NO_KEYS))


def _walk(node: Any, leaves: list[Any]) -> TreeDef:
    kind = type(node)
    rule = _NODES.get(kind)
    if rule is None:
        if issubclass(kind, tuple) and hasattr(node, "_fields"):
            return TreeDef(kind, "namedtuple", tuple([_walk(c, leaves) for c in node]))
        leaves.append(node)
        return LEAF
    if kind is dict and not node:
        return _NO_KEYS
    children, aux = rule[0](node)
    if (kind is tuple or kind is list) and len(children) <= 8:  # mostly of leaves: their structures are kept
        for child in children:
            child_kind = type(child)
            if child_kind in _NODES or issubclass(child_kind, tuple):
                break
        else:
            leaves += children
            return _of_leaves(kind, len(children))
    parts = tuple([_walk(c, leaves) for c in children])
    if kind is tuple and len(parts) == 2 and parts[1] is _NO_KEYS:  # most calls
        count = len(parts[0].children)
        if count <= 8 and parts[0] is _of_leaves(tuple, count):
            return _of_call(count)
    return TreeDef(_SHOWN_AS.get(kind, kind), aux, parts)


def flatten_as(treedef: TreeDef, tree: Any) -> list[Any] | None:
    """Leaves of `tree` in the order of a structure, whose dicts may have another order; None if it does not fit."""
    if treedef.kind is None:
        return [tree]
    if type(tree) is not treedef.kind:
        return None
    if treedef.kind in (dict, OrderedDict):
        if set(tree) != set(treedef.aux):
            return None
        children = [tree[key] for key in treedef.aux]
    elif treedef.kind in _NODES:
        parts, aux = _NODES[treedef.kind][0](tree)
        children = list(parts)
        if aux != treedef.aux:
            return None
    else:
        children = list(tree)  # a named tuple
    if len(children) != len(treedef.children):
        return None
    leaves: list[Any] = []
    for below, child in zip(treedef.children, children, strict=True):
        part = flatten_as(below, child)
        if part is None:
            return None
        leaves += part
    return leaves


def unflatten(treedef: TreeDef, leaves: Any) -> Any:
    """The nested value again. Raises ValueError when the number of leaves does not fit."""
    leaves = list(leaves)
    if len(leaves) != treedef.num_leaves:
        raise ValueError(f"unflatten: the structure has {treedef.num_leaves} leaves, got {len(leaves)}")
    return _build(treedef, iter(leaves))


def _build(node: TreeDef, supply: Iterator[Any]) -> Any:
    if node.kind is None:
        return next(supply)
    children = tuple([next(supply) if c.kind is None else _build(c, supply) for c in node.children])
    if node.kind is tuple:
        return children
    if node.kind is list:
        return list(children)
    if node.aux == "namedtuple" and node.kind not in _NODES:
        return node.kind(*children)
    return _NODES[node.kind][1](node.aux, children)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `function` to every leaf."""
    leaves, treedef = flatten(tree)
    return unflatten(treedef, [function(leaf) for leaf in leaves])
