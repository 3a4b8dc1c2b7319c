"""Differences of two graphs whose expressions are matched."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from megengine.core.pytree import flatten, tree_map, unflatten
from megengine.traced_module.bodies import Body, bodies_of
from megengine.traced_module.comparing.changes import KINDS, Bare, Change, joined, short
from megengine.traced_module.comparing.matching import Matching, best_matching
from megengine.traced_module.comparing.values import spec_changes, tensor_changes
from megengine.traced_module.ir.expr import Apply, Call, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.functions import constant_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode

Renamed = Callable[[str], str]  # path of a module of the first graph -> its path in the second


def match_graphs(a: InternalGraph, b: InternalGraph, renamed: Renamed = str) -> Matching:
    """The matching with the cheapest differences. It does not depend on the order of the two graphs."""
    turned = (len(b.exprs(recursive=False)), repr(b)) < (len(a.exprs(recursive=False)), repr(a))

    def cost(m: Matching) -> float:
        changes = graph_changes(m.exchanged() if turned else m, "", renamed)
        return sum(KINDS[change.kind] for change in changes)

    return best_matching(b, a, cost).exchanged() if turned else best_matching(a, b, cost)


def graph_changes(m: Matching, where: str, renamed: Renamed = str) -> Iterator[Change]:
    """Every difference between two matched graphs: expressions of the first, added ones, moved ones, then results."""
    for i, expr in enumerate(m.a.exprs):
        if m.to_b[i] < 0:
            yield Change(kind="removed", where=where, old=_name(expr), before=short(expr.described()))
        else:
            yield from _expr_changes(m, expr, m.b.exprs[m.to_b[i]], where, renamed)
    for j, expr in enumerate(m.b.exprs):
        if m.to_a[j] < 0:
            yield Change(kind="added", where=where, new=_name(expr), after=short(expr.described()))
    for i in _moved(m):
        a, b = m.a.exprs[i], m.b.exprs[m.to_b[i]]
        yield Change(kind="moved", where=where, old=_name(a), new=_name(b), before=_behind(a), after=_behind(b))
    old, new = m.a.graph.outputs, m.b.graph.outputs
    for i, (x, y) in enumerate(zip(old, new, strict=False)):
        if not m.same(x, y):
            names: dict[str, Any] = {"old": f"{i}", "new": f"{i}", "before": x.name, "after": y.name}
            yield Change(kind="rewired", element="output", where=where, **names)
    for i in range(len(new), len(old)):
        yield Change(kind="removed", element="output", where=where, old=f"{i}", before=old[i].name)
    for i in range(len(old), len(new)):
        yield Change(kind="added", element="output", where=where, new=f"{i}", after=new[i].name)
    for what, before, after in _form_changes(m):
        if before != after:
            yield Change(kind="changed", element="graph", where=where, what=what, before=before, after=after)


def _expr_changes(m: Matching, a: Expr, b: Expr, where: str, renamed: Renamed) -> Iterator[Change]:
    old, new = _name(a), _name(b)
    for x, y in zip(a.outputs, b.outputs, strict=False):
        if x.name != y.name:
            yield Change(kind="renamed", where=where, old=x.name, new=y.name)
    if len(a.outputs) != len(b.outputs):
        before, after = str(len(a.outputs)), str(len(b.outputs))
        what = "number of results"
        yield Change(kind="changed", where=where, old=old, new=new, what=what, before=before, after=after)
    if isinstance(a, Constant) and isinstance(b, Constant):
        for change in tensor_changes(a.value, b.value):
            yield Change(kind="changed", where=where, old=old, new=new, **change)
        return
    yield from _inner_changes(a, b, where)
    for what, before, after, only_nodes in _argument_changes(m, a, b, renamed):
        kind = "rewired" if only_nodes else "changed"
        yield Change(kind=kind, where=where, old=old, new=new, what=what, before=short(before), after=short(after))
    if isinstance(a, GetAttr):
        return  # its shape is that of the attribute, which is compared with the modules
    kind = "changed" if isinstance(a, Input) else "result"
    for x, y in zip(a.outputs, b.outputs, strict=False):
        if isinstance(x, TensorNode) and isinstance(y, TensorNode):
            for change in spec_changes(x.spec, y.spec):
                yield Change(kind=kind, where=where, old=x.name, new=y.name, **change)


def _inner_changes(a: Expr, b: Expr, where: str) -> Iterator[Change]:
    """Differences between the graphs that two ops run, under the name of the op and that of the graph."""
    theirs = dict(bodies_of(b))
    for name, body in bodies_of(a):
        if name in theirs and body != theirs[name]:
            place = joined(where, f"{_name(a)}.{name}")
            yield from graph_changes(match_graphs(body.graph, theirs[name].graph), place)


def _argument_changes(m: Matching, a: Expr, b: Expr, renamed: Renamed) -> Iterator[tuple[str, str, str, bool]]:
    """(argument, before, after, True if only nodes in it differ) for each argument of a pair that differs."""
    if isinstance(a, GetAttr) and isinstance(b, GetAttr):
        if renamed(a.name) != b.name:
            yield "path", a.name, b.name, False
        if not m.same(a.inputs[0], b.inputs[0]):
            yield "module", a.inputs[0].name, b.inputs[0].name, True
        return
    old, new = _arguments(a), _arguments(b)
    for key in dict.fromkeys((*old, *new)):
        if key not in old or key not in new:
            yield key, _text(old, key), _text(new, key), False
            continue
        if isinstance(old[key], Body) and isinstance(new[key], Body):
            continue
        same, same_but_nodes = _compare(m, old[key], new[key])
        if not same:
            yield key, _text(old, key), _text(new, key), same_but_nodes


def _arguments(expr: Expr) -> dict[str, Any]:
    """Arguments by name; operands of ops by their number."""
    if isinstance(expr, Apply):
        return {**{f"input {i}": n for i, n in enumerate(expr.inputs)}, **expr.attrs}
    if not isinstance(expr, Call):
        return {}
    try:
        return expr.named_args
    except Exception:  # the module or function does not take them (any more): compare them by position
        return {**{f"argument {i}": v for i, v in enumerate(expr.args)}, **expr.kwargs}


def _compare(m: Matching, a: Any, b: Any) -> tuple[bool, bool]:
    """(equal, equal but for the nodes in them) for two arguments."""
    (leaves_a, tree_a), (leaves_b, tree_b) = flatten(a), flatten(b)
    if tree_a != tree_b:
        return False, False
    same = True
    for x, y in zip(leaves_a, leaves_b, strict=True):
        if isinstance(x, Node) and isinstance(y, Node):
            same = same and m.same(x, y)
        elif isinstance(x, Node) or isinstance(y, Node) or not _equal_constants(x, y):
            return False, False
    return same, True


def _equal_constants(a: Any, b: Any) -> bool:
    """True for the same value of the same type; NaN equals NaN."""
    return a is b or (type(a) is type(b) and bool(constant_key(a) == constant_key(b) or (a != a and b != b)))


def _text(arguments: dict[str, Any], key: str) -> str:
    if key not in arguments:
        return "(not given)"
    return repr(tree_map(_shown, arguments[key]))


def _shown(leaf: Any) -> Any:
    """A leaf of arguments as graphs print it: nodes and dtypes by their names."""
    if isinstance(leaf, Node):
        return Bare(leaf.name)
    if isinstance(leaf, np.dtype) or (isinstance(leaf, type) and issubclass(leaf, np.generic)):
        return np.dtype(leaf).name
    return leaf


def _name(expr: Expr) -> str:
    return expr.outputs[0].name if expr.outputs else expr.name


def _behind(expr: Expr) -> str:
    return f"behind {_name(expr.previous)}" if expr.previous is not None else "first"


def _form_changes(m: Matching) -> Iterator[tuple[str, str, str]]:
    """(what, before, after) of how results nest, and of the order, the nesting and the constants of arguments."""
    a, b = m.a.graph, m.b.graph
    if len(a.outputs) == len(b.outputs) and a.out_def != b.out_def:
        before, after = (_nesting(g.out_def, ["…"] * len(g.outputs)) for g in (a, b))
        yield "nesting of results", before, after
    both = [n for n in a.inputs if m.to_b[m.a.index[id(n.expr)]] >= 0]
    partners = [m.b.exprs[m.to_b[m.a.index[id(n.expr)]]].outputs[0] for n in both]
    order = [n for n in b.inputs if any(n is p for p in partners)]
    if any(x is not y for x, y in zip(partners, order, strict=True)):
        yield "order of inputs", ", ".join(n.name for n in both), ", ".join(n.name for n in order)
    if len(a.inputs) == len(b.inputs):  # else an input was added or removed, which is reported as that
        yield "arguments", _call_form(a), _call_form(b)


def _call_form(graph: InternalGraph) -> str:
    if graph.arguments is None:
        return ""
    definition, constants = graph.arguments
    fixed = dict(constants)
    return _nesting(definition, [repr(fixed[i]) if i in fixed else "…" for i in range(definition.num_leaves)])


def _nesting(definition: Any, leaves: list[str]) -> str:
    bare = [*map(Bare, leaves)]
    value = tuple(bare) if definition is None else unflatten(definition, bare)
    return short(repr(bare[0] if definition is None and len(bare) == 1 else value))


def _moved(m: Matching) -> list[int]:
    """Expressions of the first graph outside a longest run that keeps its order."""
    if m.turned:
        return sorted(m.to_a[j] for j in _out_of_order(m.exchanged().pairs()))
    return _out_of_order(m.pairs())


def _out_of_order(pairs: list[tuple[int, int]]) -> list[int]:
    """First members of the pairs outside a longest run of rising second ones."""
    ends: list[int] = []  # the smallest last place of a run of each length
    last: list[int] = []  # the pair that has it
    before = [-1] * len(pairs)
    for k, (_, j) in enumerate(pairs):
        at = bisect_left(ends, j)
        before[k] = last[at - 1] if at else -1
        if at == len(ends):
            ends.append(j)
            last.append(k)
        else:
            ends[at], last[at] = j, k
    kept = set()
    k = last[-1] if last else -1
    while k >= 0:
        kept.add(k)
        k = before[k]
    return [i for k, (i, _) in enumerate(pairs) if k not in kept]
