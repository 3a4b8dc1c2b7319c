"""Graphs that ops run: attributes of `if` and `loop`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from megengine.core.errors import DTypeError, GraphError, ShapeError
from megengine.core.sizes import as_examples
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch.apply import no_interposers
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.placing import host
from megengine.tensor import Tensor
from megengine.traced_module.interpret import interpret
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.functions import constant_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.sizes import HoldsSizes, graph_at

DEEPEST = 20  # bodies in bodies
Run = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class Body(HoldsSizes):
    """A graph of ops as an attribute of an op, which is never changed. What it reads from around it are inputs.

    Two are equal if they have the same ops, attributes and constants; names may differ.
    """

    __slots__ = ("_digest", "_placed", "_run", "graph")

    def __init__(self, graph: InternalGraph, run: Run | None = None) -> None:
        if graph.of_calls:
            raise GraphError(f"the graph {graph.name!r} that an op runs holds calls of modules; expected ops; lower it")
        self.graph, self._run = graph, run
        self._digest: bytes | None = None
        self._placed: dict[tuple[str, int], Tensor] = {}  # constants on GPUs, by device and node

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

    def at_sizes(self, sizes: Mapping[str, int]) -> Body:
        """The body where open sizes of the graph around it have these lengths; those of its own stay open."""
        return Body(graph_at(self.graph, sizes), self._run)

    def run(self, arrays: Sequence[Any]) -> list[Any]:
        """The results, op by op, on the device where the arrays lie."""
        device = next((a.runtime.name for a in arrays if type(a) is DeviceArray), None)
        if self._run is not None and device is None:
            return self._run(arrays)
        with no_interposers():
            tensors = [Tensor._wrap(a, n.spec.dtype) for a, n in zip(arrays, self.graph.inputs, strict=True)]
            there = None if device is None else self._constants_on(device)
            return [t._storage() for t in interpret(self.graph, tensors, on_value=there)]

    def _constants_on(self, device: str) -> Callable[[TensorNode, Tensor], Tensor | None]:
        """Gives the values that lie elsewhere, which are constants, on the device; each is copied once."""

        def moved(node: TensorNode, x: Tensor) -> Tensor | None:
            if x.spec.device == device:
                return None
            key = (device, id(node))
            if key not in self._placed:
                self._placed[key] = Tensor._wrap(x._storage(), x.dtype, device)
            return self._placed[key]

        return moved

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Body) and (self is other or self._content() == other._content())

    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> bytes:
        """Of equal graphs the same bytes; it is computed once, since the graph is never changed."""
        if self._digest is None:
            exprs = self.graph.exprs()
            places = {id(n): i for i, n in enumerate(n for expr in exprs for n in expr.outputs)}
            ends = [[places[id(n)] for n in nodes] for nodes in (self.graph.inputs, self.graph.outputs)]
            digest = hashlib.sha256(repr(ends).encode())
            for expr in exprs:
                digest.update(repr((expr.kind, [places[id(n)] for n in expr.inputs], _shown(expr))).encode())
                if isinstance(expr, Constant):
                    digest.update(np.ascontiguousarray(host(expr.value._storage())).tobytes())
            self._digest = digest.digest()
        return self._digest

    def __repr__(self) -> str:
        inputs, ops = (
            [n.name for n in self.graph.inputs],
            [e.op for e in self.graph.exprs() if isinstance(e, Apply)],
        )
        return f"{self.graph.name}({', '.join(inputs)}: {', '.join(ops[:4])}{', ...' * (len(ops) > 4)})"


def _fits(stated: int, n: int) -> bool:
    return stated == n or type(stated) is not int


def _shown(expr: Expr) -> tuple[Any, ...]:
    """What an expression computes beside its operands, as values whose texts differ where they do."""
    specs = [str(n.spec) for n in expr.outputs if isinstance(n, TensorNode)]
    if not isinstance(expr, Apply):
        return (specs,)
    attrs = {k: v._content() if isinstance(v, Body) else constant_key(v) for k, v in sorted(expr.attrs.items())}
    return specs, expr.op, attrs


def operands_of(expr: Apply, body: Body) -> list[tuple[Any, Any]]:
    """(operand of an op, the input of a graph that it runs which takes it); operands come last on both sides.

    The first inputs of rounds are their number and whether another one follows, which no operand gives.
    """
    own = 2 if "states" in expr.attrs else 0
    inputs = body.graph.inputs[own:]
    return list(zip(expr.inputs[len(expr.inputs) - len(inputs) :], inputs, strict=True))


def bodies_of(expr: Any) -> Iterator[tuple[str, Body]]:
    """The graphs that an op runs, by the names of its attributes."""
    if isinstance(expr, Apply):
        for name, value in expr.attrs.items():
            if isinstance(value, Body):
                yield name, value
