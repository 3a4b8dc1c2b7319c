"""Graphs whose constants lie on one device, run on another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from megengine.tensor import Tensor
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode


class Elsewhere:
    """Runs a graph, and its twins for other sizes, on a device to which its constants are copied once."""

    def __init__(self, graph: InternalGraph, device: str) -> None:
        self.device = device
        constants = (e for e in graph.exprs() if isinstance(e, Constant))
        self._constants = {e.outputs[0].name: Tensor(e.value, device=device) for e in constants}

    def run(
        self, graph: InternalGraph, arrays: Sequence[Any], seen: Callable[[TensorNode, Tensor], None] | None
    ) -> list[Tensor]:
        """The results for arrays as values are stored, here or there; `seen(node, value)` sees every value."""

        def there(node: TensorNode, value: Tensor) -> Tensor:
            if value.spec.device != self.device:  # a constant, or what a copy that forward makes gives
                kept = self._constants.get(node.name) if isinstance(node.expr, Constant) else None
                value = Tensor(value, device=self.device) if kept is None else kept
            if seen is not None:
                seen(node, value)
            return value

        inputs = zip(arrays, graph.inputs, strict=True)
        tensors = [Tensor._wrap(a, node.spec.dtype, self.device) for a, node in inputs]
        return interpret(graph, tensors, on_value=there)
