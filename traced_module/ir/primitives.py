"""The primitive changes of a graph: each can be undone, and everything else is written with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, count, repeat
from operator import is_, is_not
from typing import Any

from megengine.core.errors import GraphError
from megengine.core.pytree import TreeDef
from megengine.core.sizes import names_of
from megengine.traced_module.ir.expr import SHAPE_OF, Apply, Call, Expr, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.ir.provenance import marked

IN_ANOTHER = ("nothing",)  # the record of a change that an edit log has as a part of another one


def link(graph: InternalGraph, expr: Expr, inputs: Sequence[Node], before: Expr | None) -> None:
    """Put a new expression, whose results are made, in front of another one, or last."""
    expr._inputs = tuple(inputs)
    if graph._journal.open is None:  # nobody can take it back
        _place(graph, expr, before, False, True)
        return
    graph._journal.change(_place, (graph, expr, before, False, True), ("link", graph, expr, before))
    graph._journal.open.made.append(expr)


def unlink(graph: InternalGraph, expr: Expr) -> None:
    """Take an expression out whose results nothing uses."""
    if graph._inserting is not None and graph._inserting.anchor is expr:
        graph._inserting.anchor = expr._next  # what is inserted later goes on at the same place
    graph._journal.change(_place, (graph, expr, expr._next, True, False), ("unlink", graph, expr))


def assign(graph: InternalGraph, target: Any, attribute: str, value: Any, record: tuple[Any, ...] = ()) -> None:
    """Set an attribute; `record` says what that means where it is not one of a graph, expression or node."""
    old = getattr(target, attribute)
    record = record or ("set", graph, target, attribute, value)
    if attribute == "meta":  # which the nodes of an expression share
        graph._journal.change(_refill, (target.meta, dict(old), value), record)
    else:
        graph._journal.change(_set, (target, attribute, old, value), record)


def assign_in_module(graph: InternalGraph, holder: Any, name: str, value: Any, record: tuple[Any, ...]) -> None:
    """Give a module an attribute, or another one in the place of it."""
    old = object.__getattribute__(holder, "__dict__").get(name)
    graph._journal.change(_set_or_remove, (graph, holder, name, (), old, value), record)


def drop_attribute(graph: InternalGraph, holder: Any, name: str, record: tuple[Any, ...]) -> None:
    """Take an attribute of a module away."""
    state = object.__getattribute__(holder, "__dict__")
    graph._journal.change(_set_or_remove, (graph, holder, name, tuple(state), state[name], None), record)


def forget_graphs(graph: InternalGraph, module: Any, graphs: Sequence[InternalGraph]) -> None:
    """Take graphs of a module away that nothing calls."""
    for gone in graphs:
        old = module._graphs
        new = {key: one for key, one in old.items() if one is not gone}
        graph._journal.change(_set_graphs, (graph, module, old, new), ("forget", gone))


def use_nodes(graph: InternalGraph, expr: Expr, inputs: Sequence[Node], record: tuple[Any, ...] = ()) -> None:
    """Let an expression use other nodes."""
    change = difference(expr._inputs, tuple(inputs))
    graph._journal.change(_use, (expr, *change), record or ("use", graph, expr, *change))


def exchange(graph: InternalGraph, expr: Expr, old: Node, new: Node) -> None:
    """Let an expression use one node where it uses another one."""
    change = _exchanges(expr._inputs, old, new)
    graph._journal.change(_use, (expr, *change), ("use", graph, expr, *change))


def exchange_outputs(graph: InternalGraph, old: Node, new: Node) -> None:
    """Return one node where the graph returns another one; nothing if it does not."""
    change = _exchanges(graph._outputs, old, new)
    if change[0]:
        graph._journal.change(_return, (graph, *change), ("outputs", graph, *change))


def give_results(graph: InternalGraph, call: Call, nodes: Nodes, out_def: TreeDef | None) -> None:
    """Let a call make other values, so nested: new ones have free names, those that go are not used."""
    change = (call._outputs, call._out_def), (tuple(nodes), out_def)
    graph._journal.change(_give, (graph, call, *change), ("results", graph, call, nodes, out_def))


def give_name(graph: InternalGraph, node: Node, new: str) -> None:
    """Give a node a free name."""
    graph._journal.change(_name, (graph, node, node._name, new), ("rename", graph, node, new))


def mark(exprs: Sequence[Expr], name: str) -> None:
    """Note a pass at those of these expressions that still stand, as a change that can be undone."""
    for expr in {id(e): e for e in exprs}.values():
        meta = marked(expr.meta, name)
        if expr.in_graph and meta != expr.meta:
            assign(expr._graph, expr, "meta", meta)


def is_former_input(expr: Expr) -> bool:
    """True for an input that its graph does not take any more: what uses it waits for another value."""
    return isinstance(expr, Input) and not is_among(expr._outputs[0], expr._graph._inputs)


def check_former_input(expr: Expr) -> None:
    """Raise GraphError if something uses an input that `reset_inputs` took away."""
    node = expr._outputs[0]
    if is_former_input(expr) and (node._users or is_among(node, expr._graph._outputs)):
        user = repr(next(iter(node._users))) if node._users else "the result"
        raise GraphError(
            f"{user} of {expr._graph.qualname} uses {node.name!r}, which reset_inputs took away; replace_node puts a "
            "new input, or a value made of new ones, in its place"
        )


def check_former_inputs(graph: InternalGraph) -> None:
    """`check_former_input` of each input that stands in a graph."""
    for expr in graph._order:
        if isinstance(expr, Input):
            check_former_input(expr)


def drop_former_input(graph: InternalGraph, node: Node) -> None:
    """Take a former input out, unless something uses or returns it still."""
    if is_former_input(node._expr) and not node._users and not is_among(node, graph._outputs):
        unlink(graph, node._expr)


def is_dead(expr: Expr, returned: set[int] | None = None) -> bool:
    """True for an expression whose values nothing uses or returns, and which is neither an input nor is to stay."""
    if expr._disable_remove or (isinstance(expr, Input) and not is_former_input(expr)):
        return False
    if any([n._users for n in expr._outputs]):
        return False
    returned = {id(n) for n in expr._graph._outputs} if returned is None else returned
    return not any([id(n) in returned for n in expr._outputs])


def remove_dead(graph: InternalGraph) -> int:
    """Remove expressions that no output needs (inputs stay); returns how many."""
    removed, returned = 0, {id(n) for n in graph._outputs}
    exprs = list(graph._order)
    counted = any(isinstance(e, Apply) and "count" in e._attrs for e in exprs)
    lengths: set[str] = set()  # that attributes of what stays are computed from
    with graph._journal.transaction("remove_dead"):
        for expr in reversed(exprs):  # users first, so one sweep is enough
            if is_dead(expr, returned) and not (counted and _gives_length(expr, lengths)):
                unlink(graph, expr)
                removed += 1
            elif counted and isinstance(expr, Apply):
                lengths |= names_of(tuple(expr._attrs.values()))
    return removed


def _gives_length(expr: Expr, lengths: set[str]) -> bool:
    """True for an op that gives one of these lengths, which depends on values."""
    return (
        isinstance(expr, Apply)
        and "count" in expr._attrs
        and any(names_of(n._spec.shape) & lengths for n in expr._outputs)
    )


# What changes do: see `Journal.change`.


def _place(graph: InternalGraph, expr: Expr, before: Expr | None, old: bool, new: bool) -> None:
    """Put an expression in front of another one (`new`), or take it out."""
    if not new:
        graph._order.remove(expr)
        _end_use(expr, expr._inputs)
        for n in expr._outputs:
            graph._names.free(n._name)
        return
    graph._order.insert(expr, before)
    begin_use(expr, expr._inputs)
    expr._from_shapes = _follows_from_shapes(expr)
    for n in expr._outputs:
        graph._names.take(n._name, n)


def _refill(meta: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    meta.clear()
    meta.update(new)


def _set(target: Any, attribute: str, old: Any, new: Any) -> None:
    object.__setattr__(target, attribute, new)


def _set_or_remove(graph: InternalGraph, holder: Any, name: str, order: tuple[str, ...], old: Any, new: Any) -> None:
    """Give a module an attribute, or take it away (None). One that comes back gets its place in the `order`."""
    graph._journal.addresses.clear()  # graphs of a shared module may be found by its other path from now on
    if new is None:
        object.__delattr__(holder, name)
        return
    object.__setattr__(holder, name, new)
    if order:
        state = object.__getattribute__(holder, "__dict__")
        ordered = {k: state.pop(k) for k in order if k in state} | state
        state.clear()
        state.update(ordered)


def _set_graphs(graph: InternalGraph, module: Any, old: dict[Any, Any], new: dict[Any, Any]) -> None:
    graph._journal.addresses.clear()  # of graphs behind them
    object.__setattr__(module, "_graphs", new)


def _use(expr: Expr, places: Places, old: Nodes, new: Nodes) -> None:
    _end_use(expr, old)
    begin_use(expr, new)
    expr._inputs = with_nodes(expr._inputs, places, new)
    changed = [expr]
    while changed:
        at = changed.pop()
        follows = _follows_from_shapes(at)
        if follows is not at._from_shapes:
            at._from_shapes = follows
            changed += [user for n in at._outputs for user in n._users]


def _return(graph: InternalGraph, places: Places, old: Nodes, new: Nodes) -> None:
    graph._outputs = with_nodes(graph._outputs, places, new)


def _give(graph: InternalGraph, call: Call, old: Results, new: Results) -> None:
    kept = {id(n) for n in new[0]}
    for n in old[0]:
        if id(n) not in kept:
            graph._names.free(n._name)
    for n in new[0]:
        graph._names.take(n._name, n)
    call._outputs, call._out_def = new


def _name(graph: InternalGraph, node: Node, old: str, new: str) -> None:
    graph._names.free(old)
    graph._names.take(new, node)
    node._name = new


# Calls may have thousands of operands, and each may be exchanged: what is kept of a change is where nodes differ, and
# the places are found without Python for each operand.
Nodes = Sequence[Node]
Results = tuple[tuple[Any, ...], "TreeDef | None"]
Places = list[int] | None  # None: everywhere, as one sequence is longer


def difference(old: tuple[Node, ...], new: tuple[Node, ...]) -> tuple[Places, Nodes, Nodes]:
    """Where two sequences of nodes differ, and the nodes of each that stand there."""
    if len(old) != len(new):
        return None, old, new
    places = list(compress(count(), map(is_not, old, new)))
    return places, [old[i] for i in places], [new[i] for i in places]


def _exchanges(nodes: tuple[Node, ...], old: Node, new: Node) -> tuple[list[int], Nodes, Nodes]:
    """The difference that it makes to put `new` in the places of `old`."""
    places = list(compress(count(), map(is_, nodes, repeat(old))))
    return places, (old,) * len(places), (new,) * len(places)


def with_nodes(nodes: tuple[Any, ...], places: Places, new: Nodes) -> tuple[Any, ...]:
    """The sequence with these nodes in their places."""
    if places is None:
        return tuple(new)
    values = list(nodes)
    for i, node in zip(places, new, strict=True):
        values[i] = node
    return tuple(values)


def is_among(node: Node, nodes: Sequence[Any]) -> bool:
    """`node in nodes`, without asking each whether it is equal: there may be thousands."""
    return any(map(is_, nodes, repeat(node)))


def begin_use(expr: Expr, inputs: Iterable[Node]) -> None:
    """Note that an expression uses these nodes."""
    for n in inputs:
        users = n._users
        users[expr] = users.get(expr, 0) + 1


def _end_use(expr: Expr, inputs: Iterable[Node]) -> None:
    for n in inputs:
        left = n._users.pop(expr) - 1
        if left:
            n._users[expr] = left


def _follows_from_shapes(expr: Expr) -> bool:
    """True if shapes of values, and nothing else, say what an expression gives (`x.shape[0] * 2`)."""
    if not isinstance(expr, Call) or not expr._inputs:
        return isinstance(expr, Apply) and expr._op == SHAPE_OF
    for n in expr._inputs:  # noqa: SIM110 (the first one mostly tells, and this is asked of every new expression)
        if isinstance(n, ModuleNode) or not n._expr._from_shapes:
            return False
    return True


def share_history(graphs: Sequence[InternalGraph], top: InternalGraph) -> None:
    """Let graphs be parts of the model of an outermost graph: one journal, ids of one count."""
    for graph in graphs:
        graph._journal, graph._top = top._journal, top


def number(graphs: Sequence[InternalGraph], *, flat: bool = False) -> None:
    """Give ids to graphs of one history in the order in which a reader meets the expressions: a call, then its graph.

    `flat` promises that no call enters a graph.
    """
    exprs = nodes = 0
    seen: set[int] = set()
    for graph in graphs:
        for expr in graph._order if flat else graph.exprs():
            if id(expr) not in seen:
                seen.add(id(expr))
                expr._id, exprs = exprs, exprs + 1
                for node in expr._outputs:
                    node._id, nodes = nodes, nodes + 1
    for graph in graphs[:1]:
        graph._journal.counts = nodes, exprs
