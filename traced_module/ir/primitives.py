"""The primitive changes of a graph: each can be undone, and everything else is written with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, count, repeat
from operator import is_, is_not
from typing import TYPE_CHECKING, Any

from megengine.traced_module.ir.expr import Apply, Call, Expr
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.tracing.deferred import SHAPE_OF

if TYPE_CHECKING:
    from megengine.core.pytree import TreeDef
    from megengine.traced_module.ir.graph import InternalGraph


class Primitives:
    """Changes of a graph that check nothing."""

    def _link(self: InternalGraph, expr: Expr, inputs: Sequence[Node], before: Expr | None) -> None:  # type: ignore[misc]
        """Put a new expression, whose results are made, in front of another one, or last."""
        expr._inputs = tuple(inputs)
        if self._journal.open is None:  # nobody can take it back
            _put_in(self, expr, before)
            return
        self._journal.change(_put_in, _take_out, (self, expr, before), ("link", self, expr, before))
        self._journal.open.made.append(expr)

    def _unlink(self: InternalGraph, expr: Expr) -> None:  # type: ignore[misc]
        """Take an expression out whose results nothing uses."""
        self._journal.change(_take_out, _put_in, (self, expr, expr._next), ("unlink", self, expr))

    def _set(self: InternalGraph, target: Any, attribute: str, value: Any, record: tuple[Any, ...] = ()) -> None:  # type: ignore[misc]
        """Set an attribute; `record` says what that means where it is not one of a graph, expression or node."""
        old = getattr(target, attribute)
        record = record or ("set", self, target, attribute, value)
        if attribute == "meta":  # which the nodes of an expression share
            self._journal.change(_refill_new, _refill_old, (target.meta, dict(old), value), record)
        else:
            self._journal.change(_set_new, _set_old, (target, attribute, old, value), record)

    def _set_in_module(self: InternalGraph, holder: Any, name: str, value: Any, record: tuple[Any, ...]) -> None:  # type: ignore[misc]
        """Give a module an attribute, or another one in the place of it."""
        old = object.__getattribute__(holder, "__dict__").get(name)
        self._journal.change(_set_new, _remove_or_set_old, (holder, name, old, value), record)

    def _drop(self: InternalGraph, holder: Any, name: str, record: tuple[Any, ...]) -> None:  # type: ignore[misc]
        """Take an attribute of a module away."""
        state = object.__getattribute__(holder, "__dict__")
        self._journal.change(_drop_new, _drop_old, (holder, name, state[name], tuple(state)), record)

    def _forget(self: InternalGraph, module: Any, graphs: Sequence[InternalGraph]) -> None:  # type: ignore[misc]
        """Take graphs of a module away that nothing calls."""
        for graph in graphs:
            old = module._graphs
            new = {key: one for key, one in old.items() if one is not graph}
            self._journal.change(_graphs_new, _graphs_old, (self, module, old, new), ("forget", graph))

    def _use(self: InternalGraph, expr: Expr, inputs: Sequence[Node], record: tuple[Any, ...] = ()) -> None:  # type: ignore[misc]
        """Let an expression use other nodes."""
        change = difference(expr._inputs, tuple(inputs))
        self._journal.change(_use_new, _use_old, (expr, *change), record or ("use", self, expr, *change))

    def _exchange(self: InternalGraph, expr: Expr, old: Node, new: Node) -> None:  # type: ignore[misc]
        """Let an expression use one node where it uses another one."""
        change = _exchanges(expr._inputs, old, new)
        self._journal.change(_use_new, _use_old, (expr, *change), ("use", self, expr, *change))

    def _exchange_outputs(self: InternalGraph, old: Node, new: Node) -> None:  # type: ignore[misc]
        """Return one node where the graph returns another one; nothing if it does not."""
        change = _exchanges(self._outputs, old, new)
        if change[0]:
            self._journal.change(_return_new, _return_old, (self, *change), ("outputs", self, *change))

    def _set_results(self: InternalGraph, call: Call, nodes: Nodes, out_def: TreeDef | None) -> None:  # type: ignore[misc]
        """Let a call make other values, so nested: new ones have free names, those that go are not used."""
        change = (call._outputs, call._out_def), (tuple(nodes), out_def)
        self._journal.change(_give_new, _give_old, (self, call, *change), ("results", self, call, nodes, out_def))

    def _rename(self: InternalGraph, node: Node, new: str) -> None:  # type: ignore[misc]
        """Give a node a free name."""
        self._journal.change(_name_new, _name_old, (self, node, node._name, new), ("rename", self, node, new))


# ---------------------------------------------------------------- what changes do, and how they are taken back


def _put_in(graph: InternalGraph, expr: Expr, before: Expr | None) -> None:
    graph._order.insert(expr, before)
    begin_use(expr, expr._inputs)
    expr._from_shapes = _follows_from_shapes(expr)
    for n in expr._outputs:
        graph._names.take(n._name, n)


def _take_out(graph: InternalGraph, expr: Expr, before: Expr | None) -> None:
    graph._order.remove(expr)
    _end_use(expr, expr._inputs)
    for n in expr._outputs:
        graph._names.free(n._name)


def _refill_new(meta: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    meta.clear()
    meta.update(new)


def _refill_old(meta: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> None:
    _refill_new(meta, new, old)


def _set_new(target: Any, attribute: str, old: Any, new: Any) -> None:
    object.__setattr__(target, attribute, new)


def _set_old(target: Any, attribute: str, old: Any, new: Any) -> None:
    object.__setattr__(target, attribute, old)


def _remove_or_set_old(holder: Any, name: str, old: Any, new: Any) -> None:
    if old is None:  # there was none
        object.__delattr__(holder, name)
    else:
        object.__setattr__(holder, name, old)


def _drop_new(holder: Any, name: str, value: Any, names: tuple[str, ...]) -> None:
    object.__delattr__(holder, name)


def _drop_old(holder: Any, name: str, value: Any, names: tuple[str, ...]) -> None:
    state = object.__getattribute__(holder, "__dict__")
    have = {**state, name: value}
    state.clear()
    state.update({k: have.pop(k) for k in names if k in have})  # in the order in which they were
    state.update(have)


def _graphs_new(graph: InternalGraph, module: Any, old: dict[Any, Any], new: dict[Any, Any]) -> None:
    graph._journal.addresses.clear()  # of graphs behind them
    object.__setattr__(module, "_graphs", new)


def _graphs_old(graph: InternalGraph, module: Any, old: dict[Any, Any], new: dict[Any, Any]) -> None:
    _graphs_new(graph, module, new, old)


def _use_new(expr: Expr, places: Places, old: Nodes, new: Nodes) -> None:
    _end_use(expr, old)
    begin_use(expr, new)
    expr._inputs = _with_nodes(expr._inputs, places, new)
    changed = [expr]
    while changed:
        at = changed.pop()
        found = _follows_from_shapes(at)
        if found is not at._from_shapes:
            at._from_shapes = found
            changed += [user for n in at._outputs for user in n._users]


def _use_old(expr: Expr, places: Places, old: Nodes, new: Nodes) -> None:
    _use_new(expr, places, new, old)


def _return_new(graph: InternalGraph, places: Places, old: Nodes, new: Nodes) -> None:
    graph._outputs = _with_nodes(graph._outputs, places, new)


def _return_old(graph: InternalGraph, places: Places, old: Nodes, new: Nodes) -> None:
    graph._outputs = _with_nodes(graph._outputs, places, old)


def _give_new(graph: InternalGraph, call: Call, old: Results, new: Results) -> None:
    kept = {id(n) for n in new[0]}
    for n in old[0]:
        if id(n) not in kept:
            graph._names.free(n._name)
    for n in new[0]:
        graph._names.take(n._name, n)
    call._outputs, call._out_def = new


def _give_old(graph: InternalGraph, call: Call, old: Results, new: Results) -> None:
    _give_new(graph, call, new, old)


def _name_new(graph: InternalGraph, node: Node, old: str, new: str) -> None:
    graph._names.free(node._name)
    graph._names.take(new, node)
    node._name = new


def _name_old(graph: InternalGraph, node: Node, old: str, new: str) -> None:
    _name_new(graph, node, new, old)


# ---------------------------------------------------------------- sequences of nodes

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


def _with_nodes(nodes: tuple[Any, ...], places: Places, new: Nodes) -> tuple[Any, ...]:
    """The sequence with these nodes in their places."""
    if places is None:
        return tuple(new)
    made = list(nodes)
    for i, node in zip(places, new, strict=True):
        made[i] = node
    return tuple(made)


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
