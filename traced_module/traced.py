"""TracedModule: a captured model that is called like the module it came from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import TreeDef, flatten, unflatten
from megengine.core.spec import TensorSpec
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.graph import InternalGraph, identifier
from megengine.traced_module.interpret import OnValue, interpret
from megengine.traced_module.record import record


class TracedModule(Module):
    """A model as a graph. Calling it runs the graph; editing `graph` changes what a call does.

    Shapes are those of the inputs it was traced with.
    """

    def __init__(self, graph: InternalGraph, outputs: TreeDef | None = None) -> None:
        super().__init__(graph.name)
        self._graph = graph
        self._outputs = outputs

    @classmethod
    def from_graph(cls, graph: InternalGraph) -> TracedModule:
        """Wrap a graph; a single output is returned as a tensor, several as a tuple."""
        return cls(graph)

    @property
    def graph(self) -> InternalGraph:
        """The graph, to read and to edit."""
        return self._graph

    def forward(self, *inputs: Any) -> Any:
        """Run the graph on tensors (or arrays) of the traced shapes."""
        return self.run(inputs)

    def run(self, inputs: Sequence[Any], on_value: OnValue | None = None) -> Any:
        """Run the graph; `on_value(node, tensor)` sees every value and may replace it."""
        leaves = interpret(self._graph, inputs, on_value=on_value)
        if self._outputs is not None and self._outputs.num_leaves == len(leaves):
            return unflatten(self._outputs, leaves)
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    def named_tensors(self, prefix: str | None = None, recursive: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Constants of the graph by node name."""
        from megengine.traced_module.expr import Constant

        head = f"{prefix}." if prefix else ""
        for expr in self._graph.exprs():
            if isinstance(expr, Constant):
                yield head + expr.name, expr.value

    def __repr__(self) -> str:
        return repr(self._graph)


def trace_module(module: Module, *inputs: Any, name: str | None = None) -> TracedModule:
    """Capture `module(*inputs)` as a graph; only shapes and dtypes of the inputs matter.

    Nothing is computed. Every op carries the path of the module that applied it and the source line. Raises
    GraphError when the module returns no tensor, and the value error of Tensor when Python asks for a value.
    """
    modules = {id(m): path for path, m in module.named_modules()}
    parameters = {id(t): identifier(path) for path, t in module.named_tensors()}
    tensors = [x if isinstance(x, Tensor) else Tensor(x) for x in inputs]
    structure: list[TreeDef] = []

    def run(*args: Tensor) -> Any:
        out = module(*args)
        leaves, treedef = flatten(out)
        if not leaves or not all(isinstance(v, Tensor) for v in leaves):
            raise GraphError(f"trace_module: {type(module).__name__} returned {type(out).__name__}; expected tensors")
        structure.append(treedef)
        return out

    graph = record(
        run,
        [TensorSpec(t.shape, t.dtype, t.device) for t in tensors],
        name=name or type(module).__name__,
        input_names=_input_names(module, len(tensors)),
        modules=modules,
        parameters=parameters,
    )
    return TracedModule(graph, structure[0])


def _input_names(module: Module, count: int) -> list[str]:
    """Names of forward's parameters."""
    code = getattr(type(module).forward, "__code__", None)
    names = list(code.co_varnames[1 : code.co_argcount]) if code else []
    return [names[i] if i < len(names) else f"input_{i}" for i in range(count)]


def lower(traced: TracedModule | InternalGraph) -> TracedModule:
    """An independent copy at op level: only Input, Constant and Apply expressions."""
    graph = traced.graph if isinstance(traced, TracedModule) else traced
    outputs = traced._outputs if isinstance(traced, TracedModule) else None
    return TracedModule(graph.clone(), outputs)
