"""Graphs on other devices."""

from __future__ import annotations

from dataclasses import replace

from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode


def move(graph: InternalGraph, device: str) -> None:
    """Move the constants of a graph, in place, and let its nodes say where they lie then. No other graph is changed."""
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, Constant) and expr.value.device != device:
            expr._value = Tensor(expr.value, device=device)  # clones share the tensor
    for node in graph.nodes(recursive=False):
        if isinstance(node, TensorNode) and node.spec is not None:
            node._spec = replace(node.spec, device=device)
