"""Containers of the user's among arguments and results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import register_pytree_node

__all__ = ["register_supported_type"]


def register_supported_type(
    type: type,
    flatten_fn: Callable[[Any], tuple[list, Any]] | None = None,
    unflatten_fn: Callable[[list, Any], Any] | None = None,
) -> None:
    """Let graphs look into a container: `flatten_fn(x) -> (children, aux)`, `unflatten_fn(children, aux) -> x`.

    Without functions its values are taken as constants, which is what happens to any type that is not registered.
    `aux` is hashable. Raises GraphError when only one function is given.
    """
    if (flatten_fn is None) != (unflatten_fn is None):
        raise GraphError("register_supported_type: expected both flatten_fn and unflatten_fn, or none")
    if flatten_fn is None or unflatten_fn is None:
        return

    def flatten(value: Any) -> tuple[tuple, Any]:
        children, aux = flatten_fn(value)
        return tuple(children), aux

    register_pytree_node(type, flatten, lambda aux, children: unflatten_fn(list(children), aux))
