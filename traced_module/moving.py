"""Graphs on other devices."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign


def move(graph: InternalGraph, device: str) -> None:
    """Move the constants of a graph, in place, and let its nodes say where they lie then. No other graph is changed."""
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, Constant) and expr.value.device != device:
            expr._value = Tensor(expr.value, device=device)  # clones share the tensor
        elif isinstance(expr, Apply) and "device" in expr.attrs:  # a copy that forward makes
            assign(graph, expr, "_attrs", MappingProxyType({**expr.attrs, "device": device}))
    for node in graph.nodes(recursive=False):
        if isinstance(node, TensorNode) and node.spec is not None:
            node._spec = replace(node.spec, device=device)


def home(model: Any) -> str:
    """The device of the inputs of a graph, or of a traced module's: the processor where they do not tell."""
    graph = getattr(model, "graph", model)
    specs = (n.spec for n in graph.inputs if isinstance(n, TensorNode))
    return next((spec.device for spec in specs if spec is not None), "cpu0")


def moved(graph: InternalGraph, device: str) -> InternalGraph:
    """The graph itself where all its values lie on the device, else a copy there."""
    nodes = graph.nodes(recursive=False)
    if all(n.spec.device == device for n in nodes if isinstance(n, TensorNode) and n.spec is not None):
        return graph
    copy = graph.clone()
    move(copy, device)
    return copy
