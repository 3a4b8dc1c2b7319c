"""Arguments and results in the order of MegEngine's files, in which the keys of dicts are sorted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import TreeDef
from megengine.traced_module.ir.functions import Arguments


def in_file_order(arguments: Arguments, items: Sequence[Any]) -> tuple[Arguments, list[Any]]:
    """A nesting with its dicts sorted, constants and other leaves (`items`) at their new places.

    Raises GraphError for keys that cannot be sorted.
    """
    definition, constants = arguments
    leaves: list[tuple[bool, Any]] = [(False, item) for item in items]
    for index, value in constants:
        leaves.insert(index, (True, value))
    if definition.num_leaves != len(leaves):
        return arguments, list(items)  # several results without a nesting
    definition, leaves = _sorted(definition, leaves)
    fixed = tuple((i, value) for i, (constant, value) in enumerate(leaves) if constant)
    return (definition, fixed), [value for constant, value in leaves if not constant]


def _sorted(at: TreeDef, leaves: list[Any]) -> tuple[TreeDef, list[Any]]:
    if at.kind is None:
        return at, leaves
    parts, start = [], 0
    for child in at.children:
        stop = start + child.num_leaves
        parts.append(_sorted(child, leaves[start:stop]))
        start = stop
    aux = at.aux
    if at.kind is dict:
        try:
            order = sorted(range(len(aux)), key=lambda i: aux[i])
        except TypeError:
            raise GraphError(
                f".tm: the keys {list(aux)} of a dict have no order; MegEngine keeps dicts in sorted order only"
            ) from None
        aux, parts = tuple(aux[i] for i in order), [parts[i] for i in order]
    return TreeDef(at.kind, aux, tuple(d for d, _ in parts)), [leaf for _, part_leaves in parts for leaf in part_leaves]
