"""Rules: where a pattern matches, something else is put in its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from megengine.core.errors import GraphError
from megengine.traced_module.editing.checking import check_owned
from megengine.traced_module.ir.expr import Callee, Constant, Expr, Input
from megengine.traced_module.ir.functions import function_of
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import Node, TensorNode
from megengine.traced_module.ir.primitives import assign, is_among, is_dead, remove_dead, unlink
from megengine.traced_module.ir.provenance import in_place_of, left_in_float, marked
from megengine.traced_module.passes.layer_uses import Renaming, graphs_below, take_names
from megengine.traced_module.pattern_targets import Target
from megengine.traced_module.patterns import Match, Pattern, match


@dataclass(frozen=True, slots=True)
class Rule:
    """`build(m)` gives the node that takes the place of what `pattern` matched, or None to leave it.

    `m[part]` is the node of a part of the pattern, `m.apply(op, *nodes, attrs=...)` adds an op, or a call of its
    function in a graph of calls. There, functions, methods and layers may be called on nodes, too. The replacement
    carries module, source line and passes of `m.origin`, which is the whole unless `build` sets it to a part.

    Args:
        name: noted at what the rule makes.
        pattern: what is replaced.
        build: makes the replacement.
        when: refuses a match.
        shared: values inside the match may be used outside it, too; else these keep it from being replaced.

    Example:
        >>> x = any_()
        >>> Rule("relu_twice", call(F.relu, call(F.relu, x)), lambda m: F.relu(m[x]))  # doctest: +SKIP
    """

    name: str
    pattern: Pattern
    build: Callable[[Found], Any]
    when: Callable[[Found], bool] | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        wrong = (
            ("pattern", "a pattern", not isinstance(self.pattern, Pattern)),
            ("build", "a function of the match", not callable(self.build)),
            ("when", "a function of the match, or None", not (self.when is None or callable(self.when))),
        )
        for name, expected, refused in wrong:
            if refused:
                raise GraphError(f"rule {self.name!r}: {name} is {getattr(self, name)!r}; expected {expected}")


class Found:
    """A match in a graph, and the place where its replacement goes."""

    def __init__(self, graph: InternalGraph, matched: Match) -> None:
        self.graph, self.match = graph, matched
        self.root = self.origin = matched.root
        self.names: Renaming = []  # names that new values take when those that have them are gone

    def __getitem__(self, pattern: Pattern) -> Any:
        return self.match[pattern]

    def __contains__(self, pattern: Pattern) -> bool:
        return pattern in self.match

    def expr(self, pattern: Pattern) -> Any:
        return self.match.expr(pattern)

    def apply(self, op: str, *inputs: TensorNode, attrs: dict[str, Any] | None = None, name: str = "") -> Any:
        """Add an op in front of the root; in a graph of calls, a call of the function of that op.

        Raises GraphError there for an op that no function stands for.
        """
        if self.graph.of_calls:
            functions = [name for kind, name in Target(op).keys() or () if kind == "function"]
            if not functions:
                raise GraphError(
                    f"apply: no function has the name of op {op!r}; expected one, as {self.graph.name!r} is a graph of "
                    "calls; call functions on nodes, or lower the graph"
                )
            return function_of(functions[0])(*inputs, **(attrs or {}))
        return self.graph.apply(op, *inputs, attrs=attrs, name=name, before=self.root.expr, meta=self.origin.meta)

    def constant(self, value: Any, name: str = "const_tensor", meta: Any = None) -> TensorNode:
        """Add a constant in front of the root."""
        return self.graph.constant(value, name, before=self.root.expr, meta=self.origin.meta if meta is None else meta)

    def is_private(self) -> bool:
        """True if nothing outside the match uses what is computed inside it."""
        inside = self.match.exprs
        nodes = [n for e in inside for n in e.outputs if n is not self.root]
        return not any(is_among(n, self.graph.outputs) or not all(u in inside for u in n.users) for n in nodes)


def find(graph: InternalGraph, pattern: Pattern, *, recursive: bool = True) -> list[Match]:
    """All matches, by the expression at their root, in execution order."""
    keys = pattern.keys()
    exprs = [expr for expr in graph.exprs(recursive) if keys is None or expr.callee in keys]
    return [m for expr in exprs for node in expr.outputs if (m := match(pattern, node)) is not None]


def rewrite(graph: InternalGraph, rules: Sequence[Rule], *, recursive: bool = True, last_first: bool = False) -> int:
    """Apply rules in one sweep, the first that fits at each expression; returns how many were applied.

    Time is linear in the graph. What a rule builds is not looked at again in the same sweep.

    Args:
        graph: changed in place.
        rules: in the order in which they are tried.
        recursive: the graphs that its calls enter are swept, too.
        last_first: begin with the last expression, so that of patterns that begin alike the longest match is found.

    Raises what a rule raises, with a note that names it; the graph is as it was then.
    """
    if not isinstance(graph, InternalGraph) or not all(isinstance(rule, Rule) for rule in rules):
        wrong = graph if not isinstance(graph, InternalGraph) else next(r for r in rules if not isinstance(r, Rule))
        raise GraphError(f"rewrite: got a {type(wrong).__name__}; expected a graph (traced.graph) and a list of rules")
    keyed = [(rule, rule.pattern.keys()) for rule in rules]
    return sum(_sweep(one, keyed, last_first) for one in (graphs_below(graph) if recursive else [graph]))


def _sweep(graph: InternalGraph, keyed: Sequence[tuple[Rule, set[Callee] | None]], last_first: bool) -> int:
    rules_for: dict[Callee, list[Rule]] = {}
    to_try = []
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, (Input, Constant)):
            continue
        key = expr.callee
        if key not in rules_for:
            rules_for[key] = [rule for rule, keys in keyed if keys is None or key in keys]
        if rules_for[key]:
            to_try.append((expr, rules_for[key]))
    if not to_try:
        return 0
    applied, names = 0, []
    with graph.journal.transaction("rewrite"):
        for expr, rules in reversed(to_try) if last_first else to_try:
            applied += any(_named_try(graph, expr, rule, names) for rule in rules)
        if applied:
            remove_dead(graph)
            take_names(graph, names)
    return applied


def _named_try(graph: InternalGraph, expr: Expr, rule: Rule, names: Renaming) -> bool:
    applied = False
    try:
        for node in expr.outputs if expr.in_graph else ():
            applied |= expr.in_graph and _try(graph, node, rule, names)
    except Exception as exc:
        exc.add_note(f"in rule {rule.name!r} at {expr!r} of {graph.qualname}")
        raise
    return applied


def _try(graph: InternalGraph, node: Node, rule: Rule, names: Renaming) -> bool:
    matched = match(rule.pattern, node)
    if matched is None:
        return False
    found = Found(graph, matched)
    if not (rule.shared or found.is_private()) or (rule.when is not None and not rule.when(found)):
        return False
    made = graph.journal.made
    known = len(made)
    inserting = graph.insert_exprs(found.root.expr.previous) if graph.of_calls else nullcontext()
    with graph.journal.runs(rule.name), inserting:
        new = rule.build(found)
    if new is None or new is node:
        return False
    check_owned(graph, f"what rule {rule.name!r} builds", [new])
    graph.replace_node({node: new})
    gone = []
    for expr in found.match.exprs:
        if expr.in_graph and is_dead(expr):  # a part that occurs twice is there twice
            gone.append(expr)
            unlink(found.graph, expr)
    layer = None if found.origin is found.root else found.origin.expr
    for expr in made[known:]:
        kept = left_in_float({**expr.meta, **found.origin.meta}, gone)
        meta = in_place_of(kept, () if graph.of_calls else gone, layer)
        assign(graph, expr, "meta", marked(meta, rule.name))
    names += found.names
    return True
