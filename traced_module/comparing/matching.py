"""Matches the expressions of two graphs: by structure, with names as hints.

Every expression gets two numbers. The first stands for all that it is computed from, the second for all that is
computed from it; expressions with equal numbers play the same part, whatever their names. The numbers are taken twice:
strictly, and without the constants among the arguments, so that a changed stride does not hide what follows it.

An edit changes the first number of everything behind it and the second of everything before it. What is left is
matched by one of them, by name, and then from neighbour to neighbour. The best order of these depends on the edit (a
retraced model shifts names, an inserted copy of its neighbour shifts structure): a few orders are tried, and the one
with the cheapest differences is kept. The time is linear in the size of the graphs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.functions import arguments_key, constant_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode

Table = dict[Hashable, int]


class Side:
    """One graph, its expressions numbered from 0 in execution order."""

    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.exprs: list[Expr] = graph.exprs(recursive=False)
        self.index = {id(e): i for i, e in enumerate(self.exprs)}
        self.makers = [[self.index[id(n.expr)] for n in e.inputs] for e in self.exprs]
        self.users: list[list[tuple[int, int, int]]] = [[] for _ in self.exprs]  # (user, its place, which result)
        for i, expr in enumerate(self.exprs):
            for place, node in enumerate(expr.inputs):
                self.users[self.index[id(node.expr)]].append((i, place, result_index(node)))
        self.callees = [callee(e) for e in self.exprs]
        self.names = [e.outputs[0].name if e.outputs else "" for e in self.exprs]
        self._places = {id(n): i for i, n in enumerate(graph.inputs)}

    def label(self, i: int, *, strict: bool) -> Hashable:
        expr = self.exprs[i]
        if isinstance(expr, Input):
            return (Input, self._places.get(id(expr.outputs[0]), -1))
        if isinstance(expr, Constant):
            return (Constant, expr.outputs[0].spec if strict else None)
        if isinstance(expr, GetAttr):
            node = expr.outputs[0]
            loose = node.module_type.__name__ if isinstance(node, ModuleNode) else ""
            return (*self.callees[i], expr.name if strict else loose)
        if not strict:
            return self.callees[i]
        if isinstance(expr, Apply):
            attrs = sorted(expr.attrs.items())
            return (self.callees[i], tuple((key, type(v).__name__, constant_key(v)) for key, v in attrs))
        return (self.callees[i], arguments_key(expr.arguments) if isinstance(expr, Call) else None)

    def numbers(self, table: Table, *, strict: bool) -> list[tuple[int, int]]:
        """(from what, for what) each expression is computed, as numbers that two graphs share through `table`."""
        labels = [self.label(i, strict=strict) for i in range(len(self.exprs))]
        numbers: list[int] = []
        for label, expr, makers in zip(labels, self.exprs, self.makers, strict=True):
            operands = tuple((numbers[m], result_index(n)) for m, n in zip(makers, expr.inputs, strict=True))
            numbers.append(table.setdefault(("made", label, operands), len(table)))
        returned: dict[int, list[int]] = {}
        for place, node in enumerate(self.graph.outputs):
            returned.setdefault(self.index[id(node.expr)], []).append(place)
        used = [0] * len(self.exprs)
        for i in reversed(range(len(self.exprs))):
            users = tuple(sorted((used[user], place, which) for user, place, which in self.users[i]))
            used[i] = table.setdefault(("used", labels[i], users, tuple(returned.get(i, ()))), len(table))
        return list(zip(numbers, used, strict=True))


def result_index(node: Any) -> int:
    """The place of a node among the results of its expression."""
    outputs = node.expr.outputs
    return 0 if len(outputs) == 1 else [n is node for n in outputs].index(True)


def callee(expr: Expr) -> tuple[Hashable, ...]:
    if isinstance(expr, Apply):
        return (expr.kind, expr.op)
    if isinstance(expr, CallFunction):
        return (expr.kind, expr.qualified)
    if isinstance(expr, CallMethod):
        return (expr.kind, expr.method)
    return (expr.kind, isinstance(expr.outputs[0], ModuleNode))


# ---------------------------------------------------------------- matching


@dataclass
class Matching:
    """Pairs of expressions of two graphs: for each index of one the index of the other, or -1."""

    a: Side
    b: Side
    to_b: list[int] = field(default_factory=list)
    to_a: list[int] = field(default_factory=list)
    turned: bool = False  # made with the graphs exchanged: ties are broken by the order of the second one

    def __post_init__(self) -> None:
        self.to_b = self.to_b or [-1] * len(self.a.exprs)
        self.to_a = self.to_a or [-1] * len(self.b.exprs)

    def pair(self, i: int, j: int) -> None:
        """Expression `i` of the first graph is expression `j` of the second."""
        self.to_b[i], self.to_a[j] = j, i

    def pairs(self) -> list[tuple[int, int]]:
        return [(i, j) for i, j in enumerate(self.to_b) if j >= 0]

    def same(self, node_a: Any, node_b: Any) -> bool:
        paired = self.to_b[self.a.index[id(node_a.expr)]] == self.b.index[id(node_b.expr)]
        return paired and result_index(node_a) == result_index(node_b)

    def exchanged(self) -> Matching:
        return Matching(self.b, self.a, self.to_a, self.to_b, not self.turned)

    # ------------------------------------------------------------ by key

    def by_key(self, keys_a: Sequence[Any], keys_b: Sequence[Any], *, near: str = "makers") -> None:
        """Pair expressions of equal keys, in the order of the keys.

        Among several of one key, those are paired first whose makers (with `near="users"`: users) are paired, then
        those of equal names, then the rest in their order.
        """
        groups: dict[Any, tuple[list[int], list[int]]] = {}
        for side, keys, taken in ((0, keys_a, self.to_b), (1, keys_b, self.to_a)):
            for i, key in enumerate(keys):
                if taken[i] < 0:
                    groups.setdefault(key, ([], []))[side].append(i)
        for key in sorted(k for k, (left, right) in groups.items() if left and right):
            left, right = groups[key]
            if len(left) == len(right) == 1:
                self.pair(left[0], right[0])
            else:
                self._pair_group(left, right, near)

    def _pair_group(self, left: list[int], right: list[int], near: str) -> None:
        around_a = {i: self._around(self.a, i, near, in_b=False) for i in left}
        around_b = {j: self._around(self.b, j, near, in_b=True) for j in right}
        name_a, name_b = self.a.names.__getitem__, self.b.names.__getitem__
        self._zip(left, right, lambda i: (around_a[i], name_a(i)), lambda j: (around_b[j], name_b(j)))
        self._zip(left, right, around_a.__getitem__, around_b.__getitem__)
        self._zip(left, right, name_a, name_b)
        self._zip(left, right, lambda i: None, lambda j: None)

    def _around(self, side: Side, i: int, near: str, *, in_b: bool) -> tuple[int, ...]:
        """Neighbours of an expression, as indices of the second graph."""
        if near == "makers":
            return tuple(m if in_b else self.to_b[m] for m in side.makers[i])
        return tuple(sorted(u if in_b else self.to_b[u] for u, _, _ in side.users[i]))

    def _zip(
        self, left: Iterable[int], right: Iterable[int], key_a: Callable[[int], Any], key_b: Callable[[int], Any]
    ) -> None:
        waiting: dict[Any, deque[int]] = {}
        for j in right:
            if self.to_a[j] < 0:
                waiting.setdefault(key_b(j), deque()).append(j)
        for i in left:
            if self.to_b[i] < 0 and (partners := waiting.get(key_a(i))):
                self.pair(i, partners.popleft())

    def by_name(self) -> None:
        """Pair expressions of equal name and callee."""
        where = {key: j for j, key in enumerate(zip(self.b.names, self.b.callees, strict=True)) if key[0]}
        for i, key in enumerate(zip(self.a.names, self.a.callees, strict=True)):
            j = where.get(key, -1)
            if j >= 0 and self.to_b[i] < 0 and self.to_a[j] < 0:
                self.pair(i, j)

    # ------------------------------------------------------------ from neighbour to neighbour

    def spread(self) -> None:
        """Pair users and makers of pairs that have equal callees in the same place."""
        todo = deque(self.pairs())
        while todo:
            i, j = todo.popleft()
            for m, n in zip(self.a.makers[i], self.b.makers[j], strict=False):
                if self.to_b[m] < 0 and self.to_a[n] < 0 and self.a.callees[m] == self.b.callees[n]:
                    self.pair(m, n)
                    todo.append((m, n))
            todo.extend(self._pair_users(i, j))

    def _pair_users(self, i: int, j: int) -> list[tuple[int, int]]:
        waiting: dict[Any, deque[int]] = {}
        for user, place, which in self.b.users[j]:
            if self.to_a[user] < 0 and not isinstance(self.b.exprs[user], GetAttr):  # these are paired by their paths
                waiting.setdefault((place, which, self.b.callees[user]), deque()).append(user)
        pairs = []
        for user, place, which in self.a.users[i] if waiting else ():
            candidates = waiting.get((place, which, self.a.callees[user]))
            while self.to_b[user] < 0 and candidates:
                other = candidates.popleft()
                if self.to_a[other] < 0:
                    self.pair(user, other)
                    pairs.append((user, other))
        return pairs


ORDERS = (
    ("names", "strict", "loose", "made", "used"),
    ("strict", "names", "loose", "made", "used"),
    ("strict", "loose", "names", "made", "used"),
    ("strict", "loose", "used", "made", "names"),
    ("strict", "loose", "made", "used", "names"),
)


def best_matching(a: InternalGraph, b: InternalGraph, cost: Callable[[Matching], float]) -> Matching:
    left, right = Side(a), Side(b)
    table: Table = {}
    strict = [side.numbers(table, strict=True) for side in (left, right)]
    first = Matching(left, right)
    first.by_key(*strict)
    if -1 not in first.to_b and -1 not in first.to_a and cost(first) == 0:
        return first
    loose = [side.numbers(table, strict=False) for side in (left, right)]
    best, least = first, float("inf")
    for order in ORDERS:
        matching = _matched(Matching(left, right), order, strict, loose)
        spent = cost(matching)
        if spent < least:
            best, least = matching, spent
    return best


def _matched(matching: Matching, order: Sequence[str], strict: Any, loose: Any) -> Matching:
    outputs, used = ([[numbers[k] for numbers in side] for side in loose] for k in (0, 1))
    steps: dict[str, Callable[[], None]] = {
        "names": matching.by_name,
        "strict": lambda: matching.by_key(*strict),
        "loose": lambda: matching.by_key(*loose),
        "made": lambda: matching.by_key(*outputs),
        "used": lambda: matching.by_key(*used, near="users"),
    }
    for step in order:
        steps[step]()
    matching.spread()
    return matching
