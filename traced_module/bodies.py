"""Graphs that ops run: attributes of `if` and `loop`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, GraphError, ShapeError
from megengine.core.sizes import as_examples
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch.apply import no_interposers
from megengine.tensor import Tensor
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

DEEPEST = 20  # bodies in bodies
Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class Body:
    """A graph of ops as an attribute of an op, which is never changed. What it reads from around it are inputs."""

    __slots__ = ("_run", "graph")

    def __init__(self, graph: InternalGraph, run: Run | None = None) -> None:
        if graph.of_calls:
            raise GraphError(f"the graph {graph.name!r} that an op runs holds calls of modules; expected ops; lower it")
        self.graph, self._run = graph, run

    def specs(self, given: Sequence[TensorSpec]) -> list[TensorSpec]:
        """Specs of the results. Raises ShapeError and DTypeError where these specs are not those of the inputs."""
        nodes = self.graph.inputs
        if len(given) != len(nodes):
            raise ShapeError(f"graph {self.graph.name!r} takes {counted(len(nodes), 'input')}, got {len(given)}")
        for node, spec in zip(nodes, given, strict=True):
            with as_examples():
                fits = len(node.spec.shape) == len(spec.shape) and all(
                    _fits(*pair) for pair in zip(node.spec.shape, spec.shape, strict=True)
                )
            if not fits:
                raise ShapeError(f"input {node.name!r} of graph {self.graph.name!r} is {node.spec}, got {spec}")
            if node.spec.dtype != spec.dtype:
                raise DTypeError(f"input {node.name!r} of graph {self.graph.name!r} is {node.spec}, got {spec}")
        return [node.spec for node in self.graph.outputs]

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results, op by op."""
        if self._run is not None:
            return self._run(arrays)
        with no_interposers():
            tensors = [Tensor._wrap(a, n.spec.dtype) for a, n in zip(arrays, self.graph.inputs, strict=True)]
            return [t._storage() for t in interpret(self.graph, tensors)]

    def __repr__(self) -> str:
        inputs, ops = (
            [n.name for n in self.graph.inputs],
            [e.op for e in self.graph.exprs() if isinstance(e, Apply)],
        )
        return f"{self.graph.name}({', '.join(inputs)}: {', '.join(ops[:4])}{', ...' * (len(ops) > 4)})"


def _fits(stated: int, n: int) -> bool:
    return stated == n or type(stated) is not int


def bodies_of(expr: Any) -> Iterator[tuple[str, Body]]:
    """The graphs that an op runs, by the names of its attributes."""
    if isinstance(expr, Apply):
        for name, value in expr.attrs.items():
            if isinstance(value, Body):
                yield name, value
