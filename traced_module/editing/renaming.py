"""Names of nodes; the parameter of a module's call is named as the input of its graph."""

from __future__ import annotations

import inspect
from typing import Any

from megengine.core.pytree import TreeDef
from megengine.traced_module.editing.attaching import is_of_top
from megengine.traced_module.ir.expr import Input
from megengine.traced_module.ir.functions import arguments_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import IN_ANOTHER, assign, give_name

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def rename_node(graph: InternalGraph, node: Node, new: str) -> None:
    """Give a node a free name; of an input that is a parameter of its own, the parameter gets it too.

    A parameter of a module with several graphs keeps its name, as each graph has an input for it.
    """
    old = node._name
    give_name(graph, node, new)
    signature = _signature(graph)
    if signature is None or not isinstance(node._expr, Input) or not isinstance(node, TensorNode):
        return
    parameter = signature.parameters.get(old)
    if parameter is None or parameter.kind not in _NAMED or new in signature.parameters:
        return
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not _rename_keyword(graph, old, new):
        return
    renamed = [p.replace(name=new) if p is parameter else p for p in signature.parameters.values()]
    assign(graph, graph._owner, "forward_signature", signature.replace(parameters=renamed), IN_ANOTHER)


def _signature(graph: InternalGraph) -> inspect.Signature | None:
    """The signature by which the only graph of a module is called."""
    owner: Any = graph._owner
    if len(getattr(owner, "graphs", ())) != 1 or owner.graphs[0] is not graph or graph.arguments is None:
        return None
    return owner.forward_signature


def _rename_keyword(graph: InternalGraph, old: str, new: str) -> bool:
    """Let calls of the outermost graph give an argument under another name; False for others, whose calls stay."""
    assert graph.arguments is not None
    (args, kwargs), constants = graph.arguments[0].children, graph.arguments[1]
    if not is_of_top(graph) or old not in kwargs.aux:
        return False
    keys = tuple([new if key == old else key for key in kwargs.aux])
    arguments = TreeDef(tuple, None, (args, TreeDef(dict, keys, kwargs.children))), constants
    assign(graph, graph, "arguments", arguments, IN_ANOTHER)
    assign(graph, graph._owner, "_graphs", {arguments_key(arguments): graph}, IN_ANOTHER)
    return True
