"""What one can ask a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import CallMethod, Expr, is_apply_def
from megengine.traced_module.ir.filters import ExprFilter
from megengine.traced_module.ir.node import module_of
from megengine.traced_module.ir.owner import GraphOwner

# what a module keeps beside its attributes
_BOOKKEEPING = frozenset(("name", "_forward_hooks", "_forward_pre_hooks", "_name", "_short_name"))
_OF_GRAPHS = frozenset(
    (*("_graphs", "forward_signature", "specializations", "origin"), "watch_points", "end_points", "watch_node_value")
)


def child_graph(expr: Expr) -> Any:
    """The graph that the call of a traced submodule enters; None for other expressions."""
    return _graph_of(_called_module(expr), expr)


def child_graphs(graph: Any) -> list[Any]:
    """Graphs that calls of submodules enter, each once, in the order of their first call."""
    graphs: dict[int, Any] = {}
    for expr in graph._order:
        child = child_graph(expr) if isinstance(expr, CallMethod) else None
        if child is not None:
            graphs.setdefault(id(child), child)
    return list(graphs.values())


def enters_otherwise(expr: Expr) -> bool:
    """True for a call that gives a graph other shapes than those that it was traced with."""
    child = child_graph(expr)
    return child is not None and [n.spec for n in expr.inputs[1:]] != [n.spec for n in child.inputs[1:]]


def graphs_of(module: GraphOwner) -> list[Any]:
    """Graphs of a module and of all modules below it, each once."""
    graphs: list[Any] = []
    todo, seen = [module], {id(module)}
    while todo:
        at = todo.pop()
        graphs += at.graphs
        for value in object.__getattribute__(at, "__dict__").values():
            if isinstance(value, GraphOwner) and id(value) not in seen:
                seen.add(id(value))
                todo.append(value)
    return graphs


def all_exprs(top: Any) -> Iterator[Expr]:
    """Expressions of all graphs of a module: also of those that nothing calls at present."""
    owner: Any = top.owner
    if not hasattr(owner, "graphs"):
        yield from top.exprs()
        return
    for graph in graphs_of(owner):
        if graph.top is top:
            yield from graph.exprs(recursive=False)


def called_exprs(top: Any) -> Iterator[Expr]:
    """Expressions of the graphs of a module and of those that calls reach from there, in execution order."""
    owner: Any = top.owner
    for graph in getattr(owner, "graphs", None) or (top,):
        yield from graph.exprs()


def is_reached(expr: Expr) -> bool:
    """Whether an expression is in a graph of its module, or in one that calls reach from there."""
    return expr.in_graph and any(e is expr for e in called_exprs(expr.top_graph.top))


def visits(graph: Any, recursive: bool) -> Iterator[tuple[Expr, Any]]:
    """Expressions, each with the module that it calls, which is looked up once, or None."""
    seen = {id(graph)}
    entered = [iter(graph._order)]
    while entered:
        for expr in entered[-1]:
            module = _called_module(expr)
            yield expr, module
            child = _graph_of(module, expr) if recursive else None
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                entered.append(iter(child._order))
                break
        else:
            entered.pop()


def applied(graph: Any, op: str | None = None) -> ExprFilter:
    """Expressions of a graph, and of those that it enters, that apply the op of that name."""
    return graph.exprs()._keep(lambda e: is_apply_def(e, op))


def _called_module(expr: Expr) -> Any:
    calls = isinstance(expr, CallMethod) and expr._method == "__call__"
    return module_of(expr._inputs[0]) if calls else None


def _graph_of(module: Any, call: Expr) -> Any:
    return module.graph_of_call(call) if issubclass(type(module), GraphOwner) else None


def children_of(module: Any) -> dict[str, Any]:
    """Submodules and tensors of a module by path, those in lists and dicts included."""
    children: dict[str, Any] = {}
    todo = [("", value, name) for name, value in reversed(entries_of(module).items())]
    while todo:
        head, value, name = todo.pop()
        path = f"{head}.{name}" if head else str(name)
        if isinstance(value, (Module, Tensor)):
            children[path] = value
        elif isinstance(value, (list, tuple)):
            todo += [(path, v, str(i)) for i, v in reversed(list(enumerate(value)))]
        elif isinstance(value, Mapping):
            todo += [(path, v, str(k)) for k, v in reversed(list(value.items()))]
    return children


def entries_of(module: Any) -> dict[str, Any]:
    """Attributes of a module by name."""
    entries = object.__getattribute__(module, "__dict__")
    left_out = _BOOKKEEPING | _OF_GRAPHS if hasattr(module, "_graphs") else _BOOKKEEPING
    return {name: value for name, value in entries.items() if name not in left_out}
