"""Traced modules in pickles of Python and in `copy.deepcopy`: flat lists, so that long graphs do not nest deep."""

from __future__ import annotations

from typing import Any

from megengine.traced_module.editing.attaching import own_history
from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import link
from megengine.traced_module.traced import TracedModule

# kind of an expression -> the arguments of its constructor, besides graph, id and meta
_PARTS: dict[type[Expr], Any] = {
    Input: lambda e: (),
    Constant: lambda e: (e.value,),
    GetAttr: lambda e: (e.name,),
    CallMethod: lambda e: (e.arguments, e.method),
    CallFunction: lambda e: (e.arguments, e.qualified),
    Apply: lambda e: (e.op, dict(e.attrs)),
}
_KINDS = {kind.kind: kind for kind in _PARTS}
_DROPPED = ("_graphs", "watch_points", "end_points", "watch_node_value")  # a clone has none of these either


class Below:
    """Stands for a submodule, by its place in the list of modules."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index


def pieces(module: TracedModule) -> tuple[list[Any], list[Any]]:
    """(attributes, graphs) of a module and of the modules below it, as plain values, layers and tensors."""
    modules: dict[int, TracedModule] = {}
    todo = [module]
    while todo:
        at = todo.pop()
        if id(at) not in modules:
            modules[id(at)] = at
            todo += [v for v in reversed(_state(at).values()) if isinstance(v, TracedModule)]
    index = {key: i for i, key in enumerate(modules)}
    states = []
    for at in modules.values():
        own = {name: value for name, value in _state(at).items() if name not in _DROPPED}
        states.append({k: Below(index[id(v)]) if isinstance(v, TracedModule) else v for k, v in own.items()})
    return states, [[_graph(graph) for graph in _state(at)["_graphs"].values()] for at in modules.values()]


def rebuilt(states: list[Any], graphs: list[Any]) -> TracedModule:
    """The module of these `pieces`; its graphs have a history of their own."""
    modules = [TracedModule() for _ in states]
    for module, state in zip(modules, states, strict=True):
        own = {name: modules[v.index] if isinstance(v, Below) else v for name, v in state.items()}
        _state(module).update(own)
    rebuilt_graphs = []
    for module, described in zip(modules, graphs, strict=True):
        for one in described:
            graph = _rebuilt_graph(one, module)
            TracedModule._add_graph(module, graph)
            rebuilt_graphs.append(graph)
    counts = [g.journal.counts for g in rebuilt_graphs]
    own_history(rebuilt_graphs)
    if rebuilt_graphs:
        nodes, exprs = zip(*counts, strict=True)
        rebuilt_graphs[0].journal.counts = max(nodes), max(exprs)
    return modules[0]


def reduced(graph: InternalGraph) -> tuple[Any, tuple[Any, ...]]:
    """How `pickle` and `copy.deepcopy` make a graph of ops again: as the graph of a module of its own."""
    return _graph_of, (TracedModule.from_graph(graph),)


def _graph_of(module: TracedModule) -> InternalGraph:
    return module.graph


def _state(module: TracedModule) -> dict[str, Any]:
    return object.__getattribute__(module, "__dict__")


def _graph(graph: InternalGraph) -> dict[str, Any]:
    exprs = graph.exprs(recursive=False)
    place = {id(n): (i, k) for i, e in enumerate(exprs) for k, n in enumerate(e.outputs)}
    return {
        "name": (graph.name, graph.qualname),
        "owned": graph.owner is not None,
        "exprs": [_expr(expr, place) for expr in exprs],
        "inputs": [place[id(n)] for n in graph.inputs],
        "outputs": [place[id(n)] for n in graph.outputs],
        "names": [name for name in graph.names if graph.names.get(name) is None],
        "call": (graph.arguments, graph.out_def),
        "metadata": dict(graph.metadata),
        "counts": graph.journal.counts,
    }


def _expr(expr: Expr, place: dict[int, tuple[int, int]]) -> tuple[Any, ...]:
    outputs = [
        (n.id, n.name, n.qualname, *((n.spec, n.qparams) if isinstance(n, TensorNode) else (None, None)))
        for n in expr.outputs
    ]
    results = expr.out_def if isinstance(expr, Call) else None
    head = (expr.kind, expr.id, dict(expr.meta), expr.kept, results)
    return (*head, _PARTS[type(expr)](expr), [place[id(n)] for n in expr.inputs], outputs)


def _rebuilt_graph(described: dict[str, Any], owner: TracedModule) -> InternalGraph:
    graph = InternalGraph(*described["name"], owner=owner if described["owned"] else None)
    nodes: list[list[Node]] = []
    for kind, ident, meta, disable_remove, results, parts, inputs, outputs in described["exprs"]:
        expr = _KINDS[kind](graph, ident, meta, *parts)
        expr._disable_remove = disable_remove
        if isinstance(expr, Call):
            expr._out_def = results
        nodes.append([])
        for number, name, qualname, spec, qparams in outputs:
            node = graph._make_node(expr, spec, name, qualname)
            node._id = number
            if qparams is not None:
                node.qparams = qparams
            nodes[-1].append(node)
        expr._outputs = tuple(nodes[-1])
        link(graph, expr, [nodes[i][k] for i, k in inputs], None)
    for name in described["names"]:
        graph.names.take(name, None)
    graph._inputs, graph._outputs = (tuple(nodes[i][k] for i, k in described[key]) for key in ("inputs", "outputs"))
    graph.arguments, graph.out_def = described["call"]
    graph.metadata = described.get("metadata", {})
    graph.journal.counts = described["counts"]
    return graph
