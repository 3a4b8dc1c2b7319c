"""A part of a graph as a graph of its own: inputs and outputs at values inside of it, and inputs that nothing uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.traced_module.editing.attaching import is_of_top
from megengine.traced_module.editing.checking import check_owned
from megengine.traced_module.editing.ends import set_signature
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.editing.flattening import inlined
from megengine.traced_module.editing.results import calls_to, value_in, way_along
from megengine.traced_module.ir.expr import Constant, GetAttr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import node_of, node_path
from megengine.traced_module.ir.node import Node, TensorNode

Values = Sequence[TensorNode | str] | TensorNode | str


def extract(graph: InternalGraph, inputs: Values, outputs: Values) -> None:
    """Let an outermost graph take the values `inputs`, and return `outputs`; what they do not need is removed.

    Inputs that are still needed stay, in front of the new ones, which have the names of the values. All arguments of a
    module are positional then. It is one step for `undo`.

    The values may be those of submodules, and are given as nodes or by their paths; one needs no list. Calls of the
    submodules that an input is in are replaced by what they do; outputs are brought out of the others
    (`graph.value_of`).

    Raises:
        GraphError: a value is of another graph, is a weight, or both input and output; or an input is not needed.

    Example:
        >>> extract(traced.graph, [graph.node("layer1_out")], [graph.node("layer3_out")])  # doctest: +SKIP
    """
    _check_top(graph, "extract")
    with graph.journal.transaction("extract"):
        ends, results = _in_graph(graph, _listed(inputs), _listed(outputs))
        _check(graph, ends, results)
        _check_needed(ends, results)
        replaced = [(node, _input_for(graph, node)) for node in ends if not isinstance(node.expr, Input)]
        graph.replace_node(dict(replaced))
        if graph.arguments is None:
            set_outputs(graph, results)
        else:
            graph.reset_outputs(results[0] if len(results) == 1 else tuple(results))
        graph.compile()
        drop_unused_inputs(graph)
        for old, new in replaced:
            if graph.names.get(old.name) is None:
                graph.rename(new, old.name)


def drop_unused_inputs(graph: InternalGraph) -> int:
    """Remove inputs that nothing uses and no output is; returns how many. All arguments are positional then.

    Raises:
        GraphError: the graph is that of a submodule, whose callers give all inputs.
    """
    _check_top(graph, "drop_unused_inputs")
    returned = {id(node) for node in graph.outputs}
    tensors = [node for node in graph.inputs if isinstance(node, TensorNode)]
    kept = [node for node in tensors if node.users or id(node) in returned]
    if len(kept) == len(tensors):
        return 0
    with graph.journal.transaction("drop_unused_inputs"):
        if graph.arguments is not None:
            set_signature(graph, kept, {})
        else:
            for node in tensors:
                if not any(node is one for one in kept):
                    graph.erase(node.expr)
    return len(tensors) - len(kept)


def _check_top(graph: InternalGraph, what: str) -> None:
    if not is_of_top(graph):
        raise GraphError(f"{what}: {graph.qualname} is called by another graph; flatten the module, or edit the top")


def _listed(values: Values) -> Sequence[TensorNode | str]:
    return [values] if isinstance(values, (str, TensorNode)) else values


def _in_graph(graph: InternalGraph, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Nodes of the graph itself that have these values."""
    places: dict[int, Any] = {}  # values of calls that were replaced by what they do -> nodes that stand there

    def now(node: Any) -> Any:
        while id(node) in places:
            node = places[id(node)]
        return node

    def found(value: Any) -> tuple[Any, bool]:
        node = node_of(graph, value) if isinstance(value, str) else value
        along = isinstance(value, str) and bool(way_along(graph, value, node))
        return (node, True) if along else (now(node), False)

    taken = []
    for value in inputs:
        at, along = found(value)
        while isinstance(at, TensorNode) and at.graph is not graph and at.graph.top is graph.top:
            way = way_along(graph, value, at) if along else []
            copies = inlined((way or calls_to(graph, at, "extract"))[0])
            places.update(copies)
            at = copies.get(id(at), at)
        taken.append(at)
    given_back = []
    for value in outputs:
        at, along = found(value)
        given_back.append(value_in(graph, value if along else at, what="extract"))
    return list(map(now, taken)), given_back


def _check(graph: InternalGraph, inputs: Sequence[TensorNode], outputs: Sequence[TensorNode]) -> None:
    for node in inputs:
        if isinstance(node, Node) and (isinstance(node.expr, (Constant, GetAttr)) or not isinstance(node, TensorNode)):
            raise GraphError(f"extract: {node_path(node)!r} is a part of the model and cannot be an input")
    check_owned(graph, "extract", (*inputs, *outputs))
    if not outputs:
        raise GraphError("extract: expected one output or more")
    for node in inputs:
        if any(node is output for output in outputs):
            raise GraphError(f"extract: {node.name!r} is both an input and an output; nothing would be computed")


def _check_needed(inputs: Sequence[TensorNode], outputs: Sequence[TensorNode]) -> None:
    """Refuse an input that no output is computed from, or only by way of another input."""
    ends, seen = {id(node) for node in inputs}, set()
    todo: list[Node] = list(outputs)
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            todo += [] if id(node) in ends else node.expr.inputs
    for node in inputs:
        if id(node) not in seen:
            names = ", ".join(repr(output.name) for output in outputs)
            others = " without the other inputs" if len(inputs) > 1 else ""
            raise GraphError(f"extract: {names} is not computed from {node.name!r}{others}; give inputs that it needs")


def _input_for(graph: InternalGraph, node: TensorNode) -> TensorNode:
    name = f"{node.name}_input"
    if graph.arguments is None:
        return add_input(graph, name, node.spec)
    return graph.add_input_node(node.spec.shape, node.spec.dtype, name)
