"""Results of graphs that calls enter, and values of submodules as values of the graphs around them.

A graph may get another result, or lose one that nobody uses: every call that enters it is adapted. A value of a
submodule is brought out through the calls between the two graphs, one more result at each level.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import LEAF, TreeDef
from megengine.traced_module.editing.attaching import is_of_top
from megengine.traced_module.editing.checking import check_owned, specs_of, where_it_stands
from megengine.traced_module.ir.expr import Call, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.lookup import attribute_path, node_of, node_path
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import assign, give_results, is_among
from megengine.traced_module.ir.queries import all_exprs, child_graph
from megengine.traced_module.tracing.lengths import open_names


def set_results(graph: InternalGraph, leaves: Sequence[TensorNode], structure: TreeDef) -> None:
    """Let a graph return these of its values, so nested, and every call of it give them.

    Raises:
        GraphError: a result that goes is used where the graph is called.
    """
    old = graph.outputs
    calls = callers(graph)
    for call in calls:
        for node in _split(old, call, leaves)[1]:
            users = [user.name for user in node.users]
            if is_among(node, node.graph.outputs):
                users.append("the outputs")
            if users:
                where = node_path(node)
                raise GraphError(
                    f"reset_outputs: {graph.qualname} would no longer return what {where!r} is, which is used by "
                    f"{', '.join(users)}; replace its uses first"
                )
    assign(graph, graph, "_outputs", tuple(leaves))
    assign(graph, graph, "out_def", structure)
    for call in calls:
        _adapt(call, old, leaves, structure)


def _nesting(graph: InternalGraph) -> TreeDef:
    now = graph.out_def
    if now is None or now.num_leaves != len(graph.outputs):
        return LEAF if len(graph.outputs) == 1 else TreeDef(tuple, None, (LEAF,) * len(graph.outputs))
    return now


def beside_one_more(graph: InternalGraph) -> TreeDef:
    """The nesting of the results of a graph that returns (what it did, one more value), as in MegEngine."""
    return TreeDef(tuple, None, (_nesting(graph), LEAF))


def with_one_more(graph: InternalGraph) -> TreeDef:
    """The nesting of the results of a graph that gives its callers one more value, the last of a tuple."""
    now = _nesting(graph)
    parts = now.children if isinstance(now.kind, type) and issubclass(now.kind, tuple) else (now,)
    return TreeDef(tuple, None, (*parts, LEAF))


def callers(graph: InternalGraph) -> list[Call]:
    """Every call that enters a graph, in any graph of the model."""
    if is_of_top(graph):
        return []
    return [expr for expr in all_exprs(graph.top) if isinstance(expr, Call) and child_graph(expr) is graph]


def _split(old: Sequence[Node], call: Call, leaves: Sequence[Node]) -> tuple[list[TensorNode | None], list[TensorNode]]:
    """Results of a call that stand for these values of its graph (None: not yet), and those that would go."""
    left: dict[int, list[TensorNode]] = {}
    for inner, result in zip(old, call.outputs, strict=True):
        left.setdefault(id(inner), []).append(result)
    kept = [left[id(leaf)].pop(0) if left.get(id(leaf)) else None for leaf in leaves]
    return kept, [result for results in left.values() for result in results]


def _adapt(call: Call, old: Sequence[Node], leaves: Sequence[TensorNode], structure: TreeDef) -> None:
    """Give a call the results that its graph has now."""
    graph, module = call.top_graph, call.inputs[0]
    as_traced = all(n.spec == m.spec for n, m in zip(call.inputs[1:], leaves[0].graph.inputs[1:], strict=True))
    as_traced = as_traced and not open_names(leaves)
    specs = [leaf.spec for leaf in leaves] if as_traced else specs_of(call, call.inputs)
    assert specs is not None
    nodes: list[TensorNode] = []
    taken: set[str] = set()
    for kept, leaf, spec in zip(_split(old, call, leaves)[0], leaves, specs, strict=True):
        if kept is None:
            wanted = f"{module.name}_{leaf.name}"
            name, count = graph.names.unique(wanted), 0
            while name in taken:
                count += 1
                name = graph.names.unique(f"{wanted}_{count}")
            taken.add(name)
            kept = graph._make_node(call, spec, name, f"{module.qualname}.[out]")
        nodes.append(kept)
    give_results(graph, call, tuple(nodes), structure if structure.kind is not None else None)


def value_in(graph: InternalGraph, node: Any, *, what: str, through: Expr | None = None) -> Any:
    """A node of a graph that has the value of a node of a submodule; see `InternalGraph.value_of`."""
    if isinstance(node, str):
        node, path = node_of(graph, node), node
        way = way_along(graph, path, node) if through is None else None
    else:
        way = None
    if not isinstance(node, TensorNode) or node.top_graph is graph or node.top_graph.top is not graph.top:
        return graph.assignments.latest(node)  # the checks of the edit itself say what is wrong
    check_owned(node.top_graph, what, [node])
    for call in reversed(way or calls_to(graph, node, what, through)):
        node = _result_for(call, node)
    return node


def calls_to(graph: InternalGraph, node: Node, what: str, through: Expr | None = None) -> list[Call]:
    """The calls that lead from a graph to that of a node, outermost first."""
    if through is None:
        first_way = _first_way(graph, node.top_graph)
    else:
        if not isinstance(through, Expr):
            raise GraphError(f"{what}: through is {through!r}; expected the call of a submodule, as node.expr gives it")
        inside = child_graph(through)
        if inside is None:
            raise GraphError(f"{what}: {through!r} enters no graph; give a call of a submodule")
        before, behind = _first_way(graph, through.top_graph), _first_way(inside, node.top_graph)
        first_way = None if before is None or behind is None else [*before, through, *behind]
    if first_way is None:
        way = f" by way of {through!r}" if through is not None else ""
        raise GraphError(
            f"{what}: {node_path(node)!r} is not computed by graph {graph.name!r}{way}{where_it_stands(graph, node)}"
        )
    return first_way


def _first_way(graph: InternalGraph, wanted: InternalGraph) -> list[Call] | None:
    """The first calls in execution order by which a graph comes to another one."""
    way: list[Call] = []
    entered = [iter(graph.exprs(recursive=False))]
    seen = {id(graph)}
    while entered:
        if len(way) == len(entered) - 1 and (child_graph(way[-1]) if way else graph) is wanted:
            return way
        for expr in entered[-1]:
            child = child_graph(expr)
            if isinstance(expr, Call) and child is not None and id(child) not in seen:
                seen.add(id(child))
                way.append(expr)
                entered.append(iter(child.exprs(recursive=False)))
                break
        else:
            entered.pop()
            if way:
                way.pop()
    return None


def way_along(graph: InternalGraph, path: str, node: Node) -> list[Call]:
    """The calls by which a graph comes to a node along a path of attributes; nothing if no calls follow it."""
    rest, way = path.rpartition(".")[0].partition("[")[0], []
    while graph is not node.top_graph:
        for expr in graph.exprs(recursive=False):
            child = child_graph(expr)
            at = "" if child is None else attribute_path(expr.inputs[0])
            if child is not None and ((rest == at and child is node.top_graph) or rest.startswith(f"{at}.")):
                way.append(expr)
                graph, rest = child, rest[len(at) + 1 :]
                break
        else:
            return []
    return way


def _result_for(call: Call, node: TensorNode) -> TensorNode:
    """The value that a call has for a node of the graph that it enters; the graph returns it from now on."""
    graph = node.top_graph
    if isinstance(node.expr, Input):
        return next(argument for argument, n in zip(call.inputs, graph.inputs, strict=True) if n is node)
    if not is_among(node, graph.outputs):
        set_results(graph, (*graph.outputs, node), with_one_more(graph))
    return next(result for result, n in zip(call.outputs, graph.outputs, strict=True) if n is node)
