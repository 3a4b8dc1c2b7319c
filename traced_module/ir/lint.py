"""Faults of graphs: `graph.lint()` stops at the first, `findings` lists those of a model, and suspicions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import is_
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import GraphError, MegEngineError
from megengine.core.text import counted
from megengine.module import BatchNorm1d, BatchNorm2d, Dropout, SyncBatchNorm
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Constant, Expr, GetAttr, Input, is_call_module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.methods import methods
from megengine.traced_module.ir.node import TensorNode, module_of
from megengine.traced_module.ir.owner import GraphOwner
from megengine.traced_module.ir.primitives import check_former_input
from megengine.traced_module.ir.provenance import graph_path, module_path
from megengine.traced_module.ir.queries import child_graph, child_graphs, children_of

# kind of finding -> what it means
KINDS = {
    "broken": "the graph contradicts itself: it cannot be run or trusted",
    "not finite": "a weight holds NaN or infinity, or another stored value NaN",
    "one value only": "the graph holds for the value that was traced, and no other",
    "training": "a layer in training mode: its results are random, or depend on the rest of the batch",
    "unused": "computed, given or stored, and used by nothing",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding.

    Attributes:
        kind: a key of KINDS.
        module: path of the module in which it is; "" for the outermost one.
        name: the node, layer or tensor.
        text: what was found.
    """

    kind: str
    module: str
    name: str
    text: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def findings(model: GraphOwner) -> list[Finding]:
    """Everything that is wrong or suspicious in a model, at either level; empty for a sound one.

    Example:
        >>> [f.text for f in findings(traced)]  # doctest: +SKIP
    """
    found: list[Finding] = []
    seen: set[int] = set()
    todo = list(reversed(model.graphs))
    while todo:
        graph = todo.pop()
        if id(graph) not in seen:
            seen.add(id(graph))
            found += _of_graph(graph)
            todo += reversed(child_graphs(graph))
    for graph in model.graphs:
        found += _broken(graph)
    found += _of_modules(model)
    found += [
        Finding("one value only", "", s.node, f"{s.what} at {s.source} was fixed as it was traced")
        for s in model.specializations
    ]
    order = list(KINDS)
    return sorted(found, key=lambda f: order.index(f.kind))


def _broken(graph: InternalGraph) -> Iterator[Finding]:
    try:
        graph.lint()
    except MegEngineError as error:
        yield Finding("broken", graph_path(graph), graph.name, str(error))


def _of_graph(graph: InternalGraph) -> Iterator[Finding]:
    returned = {id(n) for n in graph.outputs}
    for expr in graph.exprs(recursive=False):
        names = ", ".join(n.name for n in expr.outputs)
        if isinstance(expr, Constant) and (bad := _not_finite(expr.value, masks=not _weighs(expr))):
            yield Finding("not finite", module_path(expr), names, bad)
        if is_call_module(expr) and (text := _in_training(expr.inputs[0].owner)):
            yield Finding("training", graph_path(graph), expr.inputs[0].name, text)
        if expr._disable_remove or any(n._users or id(n) in returned for n in expr.outputs):
            continue
        if not isinstance(expr, Input):
            yield Finding("unused", graph_path(graph), names, f"nothing uses {expr.described()[:200]}")
        elif isinstance(expr.outputs[0], TensorNode):
            yield Finding("unused", graph_path(graph), names, "nothing uses this input")


def _in_training(layer: Any) -> str:
    if isinstance(layer, Dropout) and layer.training and layer.drop_prob > 0:
        return f"{type(layer).__name__} in training mode draws at random; call eval() before tracing"
    if isinstance(layer, (BatchNorm1d, BatchNorm2d, SyncBatchNorm)) and layer.training:
        return f"{type(layer).__name__} in training mode normalizes by the batch; call eval() before tracing"
    return ""


def _weighs(expr: Constant) -> bool:
    """Whether a layer reads the constant."""
    return any(isinstance(use, Apply) and use.record.weighted for node in expr.outputs for use in node.users)


def _not_finite(value: Tensor, *, masks: bool = False) -> str:
    """What is wrong with stored values; infinity is nothing wrong in `masks` and the starts of a maximum."""
    if storage_of(value.spec.dtype).kind != "f":
        return ""
    array = np.asarray(value.numpy())
    bad = int(np.count_nonzero(np.isnan(array) if masks else ~np.isfinite(array)))
    return f"{bad} of {counted(array.size, 'value')} are NaN or infinite" if bad else ""


def _of_modules(model: GraphOwner) -> Iterator[Finding]:
    """Weights of every module, and layers that no graph reads."""
    exprs = [e for g in model.graphs for e in g.exprs()]
    read = {id(module_of(e.outputs[0])) for e in exprs if isinstance(e, GetAttr) and e.outputs[0].users}
    seen: set[int] = set()
    todo: list[tuple[str, Any, bool]] = [("", model, True)]
    while todo:
        path, module, is_open = todo.pop()  # what a layer holds is the layer's business
        if id(module) in seen:
            continue
        seen.add(id(module))
        parent, _, name = path.rpartition(".")
        if isinstance(module, Tensor):
            if bad := _not_finite(module):
                yield Finding("not finite", parent, name, bad)
            continue
        is_layer = not isinstance(module, GraphOwner)
        if is_layer and is_open and not read & {id(module), *(id(t) for _, t in module.named_tensors())}:
            yield Finding("unused", parent, name, f"no graph reads this {type(module).__name__}")
        below = reversed(list(children_of(module).items()))
        todo += [(f"{path}.{n}" if path else n, child, not is_layer) for n, child in below]


def check(graph: InternalGraph) -> None:
    """See `InternalGraph.lint`. Each graph is checked once, however often it is called."""
    seen = {id(graph)}
    todo = [graph]
    while todo:
        at = todo.pop()
        children = [c for c in _check_one(at) if id(c) not in seen]
        seen.update(map(id, children))
        todo += reversed(children)


def _check_one(graph: InternalGraph) -> list[InternalGraph]:
    """Check one graph; returns those that it calls, each once."""
    made: set[int] = set()
    children: dict[int, InternalGraph] = {}
    for expr in graph._order:
        uses = Counter(map(id, expr._inputs))
        for node in expr._inputs:
            if id(node) not in made:
                raise GraphError(f"lint: {expr!r} uses {node.name!r} before it is made")
            if node._users.get(expr) != uses[id(node)]:
                raise GraphError(f"lint: users of {node.name!r} do not agree with the inputs of {expr!r}")
        for n in expr._outputs:
            if graph._names.get(n._name) is not n or n._graph is not graph or n._expr is not expr:
                raise GraphError(f"lint: {n.name!r} is not owned by graph {graph.name!r}")
            made.add(id(n))
        if isinstance(expr, Input):
            check_former_input(expr)
        child = child_graph(expr)
        if child is not None:
            children[id(child)] = child
        if child is None or not _enters_as_traced(expr, child):
            _check_results(expr)
    alive = set(graph._order)
    for node in graph._names.nodes().values():
        if id(node) not in made:
            raise GraphError(f"lint: name {node.name!r} is left over")
        if not alive.issuperset(node._users):
            raise GraphError(f"lint: {node.name!r} is used by an expression that is not in the graph")
    for node in (*graph._inputs, *graph._outputs):
        if id(node) not in made:
            raise GraphError(f"lint: input or output {node.name!r} is not made in the graph")
    return list(children.values())


def _check_results(expr: Expr) -> None:
    """Check that the specs of results follow from inputs and attributes, once while all of these are the same objects.

    Specs and the mapping of attributes are exchanged, never changed; what is changed in place can only be in a value.
    """
    if not isinstance(expr, Apply):
        methods.check_same(expr, expr._inputs)
        return
    facts = expr.record, expr._attrs, *[n.spec for n in expr._inputs], *[n.spec for n in expr._outputs]
    if len(facts) == len(expr._checked) and all(map(is_, facts, expr._checked)):
        return
    methods.check_same(expr, expr._inputs)
    changeable = any(isinstance(value, (list, dict, np.ndarray)) for value in expr._attrs.values())
    expr._checked = () if changeable else facts


def _enters_as_traced(expr: Expr, child: InternalGraph) -> bool:
    """True for the call of a module whose graph has the specs of the call: its own check finds all the rest."""
    operands = expr._inputs[1:]
    same = [n.spec for n in operands] == [n.spec for n in child._inputs[1:]]
    alike = [n.spec for n in expr._outputs] == [n.spec for n in child._outputs]
    return same and alike and all(n.spec.size > 16 or not n.expr._from_shapes for n in operands)
