"""Patterns: what to look for in a graph, as frozen values, for graphs of ops and of calls alike.

>>> x, w = any_(), any_()
>>> conv_relu = call("relu", call("conv2d", x, w))
>>> found = match(conv_relu, node)
>>> found[x]  # the node that x stands for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import GraphError
from megengine.traced_module.ir.expr import Callee, Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode, module_of
from megengine.traced_module.pattern_targets import Target, check_attributes, fits

_NUMBERS = (bool, int, float, np.number)
Then = Callable[[], bool]


class _Search:
    """What the parts of a pattern stand for on the way to a match.

    Where there are several ways, what one that failed has bound is taken back before the next one is tried.
    """

    __slots__ = ("bindings", "exprs")

    def __init__(self) -> None:
        self.bindings: dict[int, Any] = {}
        self.exprs: list[Expr] = []

    def bind(self, pattern: Pattern, value: Any) -> bool:
        bound = self.bindings.setdefault(id(pattern), value)
        return bound is value or bool(bound == value)

    def take_back(self, bindings: int, exprs: int) -> bool:
        """Keep only the first of the bindings and expressions; returns True."""
        del self.exprs[exprs:]
        while len(self.bindings) > bindings:
            self.bindings.popitem()  # the last one that was added
        return True


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Something that a node can match. One pattern object stands for one node wherever it occurs."""

    def __or__(self, other: Pattern) -> Pattern:
        return either((self, other))

    def where(self, condition: Callable[[Any], bool]) -> Pattern:
        """The same pattern for nodes for which `condition(node)` holds; asked of nodes that match the pattern."""
        return Where(self, condition)

    def output(self, index: int) -> Pattern:
        """The result of that number of an expression with several; patterns of one call stand for one expression."""
        return OutputOf(self, index)

    def keys(self) -> set[Callee] | None:
        """What the expression at the root of a match can call (`Expr.callee`); None for anything."""
        return None

    def fit(self, node: Any, search: _Search, then: Then) -> bool:
        """True if an operand, a node or a number, matches in a way with which `then` succeeds."""
        return self.accepts(node) and search.bind(self, node) and then()

    def accepts(self, node: Any) -> bool:
        """True if an operand matches a pattern without parts."""
        raise NotImplementedError(f"{type(self).__name__} has parts")


@dataclass(frozen=True, slots=True, eq=False)
class AnyNode(Pattern):
    """Any node."""

    def accepts(self, node: Any) -> bool:
        return isinstance(node, Node)


@dataclass(frozen=True, slots=True, eq=False)
class ConstantNode(Pattern):
    """A value that is fixed: a constant, or a tensor of the module."""

    value: Any = None

    def accepts(self, node: Any) -> bool:
        return is_fixed(node) and (self.value is None or np.array_equal(_value_of(node), self.value))


@dataclass(frozen=True, slots=True, eq=False)
class Where(Pattern):
    """A pattern with a condition on the node."""

    inner: Pattern
    condition: Callable[[Any], bool]

    def keys(self) -> set[Callee] | None:
        return self.inner.keys()

    def fit(self, node: Any, search: _Search, then: Then) -> bool:
        return self.inner.fit(node, search, lambda: self.condition(node) and search.bind(self, node) and then())


@dataclass(frozen=True, slots=True, eq=False)
class OneOf(Pattern):
    """The first of several patterns that matches."""

    choices: tuple[Pattern, ...]
    chosen: dict[Callee | None, list[Pattern]] = field(default_factory=dict)  # those that can match, by what is called

    def keys(self) -> set[Callee] | None:
        keys = [choice.keys() for choice in self.choices]
        return None if None in keys else set().union(*(k or () for k in keys))

    def fit(self, node: Any, search: _Search, then: Then) -> bool:
        key = node.expr.callee if isinstance(node, Node) else None
        if key not in self.chosen:
            self.chosen[key] = [one for one in self.choices if (keys := one.keys()) is None or key in keys]
        known = len(search.bindings), len(search.exprs)
        for choice in self.chosen[key]:
            if choice.fit(node, search, lambda: search.bind(self, node) and then()):
                return True
            search.take_back(*known)
        return False


@dataclass(frozen=True, slots=True, eq=False)
class OutputOf(Pattern):
    """One result of an expression."""

    inner: Pattern
    index: int

    def fit(self, node: Any, search: _Search, then: Then) -> bool:
        """The result of that number; the first one stands for the expression, so that patterns of several agree."""
        if not isinstance(node, Node) or node.expr.outputs[self.index : self.index + 1] != [node]:
            return False
        return search.bind(self, node) and self.inner.fit(node.expr.outputs[0], search, then)


@dataclass(frozen=True, slots=True, eq=False)
class Rest(Pattern):
    """All further inputs of a call; bound as a tuple. Only as the last input."""


@dataclass(frozen=True, slots=True, eq=False)
class Repeated(Pattern):
    """`inner` behind any number of calls of one input each (at least `least`)."""

    target: Target
    inner: Pattern
    least: int = 0

    def keys(self) -> set[Callee] | None:
        return self.target.keys() if self.least else None

    def fit(self, node: Any, search: _Search, then: Then) -> bool:
        """The longest chain first."""
        chain: list[Node] = []
        inputs: Sequence[Any] = [node]
        while len(inputs) == 1 and isinstance(inputs[0], Node):
            chain += inputs
            inputs = _inputs(chain[-1].expr) if self.target.matches(chain[-1].expr) else ()
        known = len(search.bindings), len(search.exprs)
        for length in range(len(chain) - 1, self.least - 1, -1):
            search.exprs += [n.expr for n in chain[:length]]
            if self.inner.fit(chain[length], search, lambda: search.bind(self, node) and then()):
                return True
            search.take_back(*known)
        return False


@dataclass(frozen=True, slots=True, eq=False)
class CallOf(Pattern):
    """A call: the patterns stand for its node inputs in order (of a module call, without the module)."""

    target: Target
    inputs: tuple[Pattern, ...] | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    commutative: bool = False

    def keys(self) -> set[Callee] | None:
        return self.target.keys()

    def fit(self, node: Any, search: _Search, then: Then) -> bool:
        """A call of the target whose attributes and inputs fit, in either order where that makes no difference."""
        expr = node.expr if isinstance(node, Node) else None
        if expr is None or isinstance(expr, Input) or not self.target.matches(expr) or not search.bind(self, node):
            return False
        search.exprs.append(expr)
        operands = self._operands(expr)
        known = len(search.bindings), len(search.exprs)
        if self._attributes_fit(expr) and self._operands_fit(operands, search, then):
            return True
        if not self.commutative or not (len(operands) == 2 or self.attributes):
            return False
        search.take_back(*known)
        return self._attributes_fit(expr, turned=True) and self._operands_fit(operands[::-1], search, then)

    def _operands(self, expr: Expr) -> tuple[Any, ...]:
        """What is held against the patterns: nodes, and numbers where there is a pattern for each operand."""
        operands = self.target.operands(expr)
        if operands is None:
            return _inputs(expr)
        complete = self.inputs is not None and len(self.inputs) == len(operands)
        return operands if complete else tuple([v for v in operands if isinstance(v, Node)])

    def _operands_fit(self, operands: tuple[Any, ...], search: _Search, then: Then) -> bool:
        patterns = self.inputs
        if patterns is None:
            return then()
        if patterns and isinstance(patterns[-1], Rest):
            count = len(patterns) - 1
            if len(operands) < count or not search.bind(patterns[-1], operands[count:]):
                return False
            patterns, operands = patterns[:-1], operands[:count]
        if len(patterns) != len(operands):
            return False
        others = []
        for pattern, operand in zip(patterns, operands, strict=True):
            if not isinstance(pattern, (AnyNode, ConstantNode)):
                others.append((pattern, operand))
            elif not pattern.accepts(operand) or not search.bind(pattern, operand):
                return False
        return _all_fit(others, search, then)

    def _attributes_fit(self, expr: Expr, *, turned: bool = False) -> bool:
        if not self.attributes:
            return True
        have = self.target.attributes(expr, self.attributes, turned=turned)
        rank = max((n.spec.ndim for n in (*_inputs(expr), *expr.outputs) if isinstance(n, TensorNode)), default=0)
        return all(name in have and fits(name, have[name], wanted, rank) for name, wanted in self.attributes.items())


def _all_fit(pairs: list[tuple[Pattern, Any]], search: _Search, then: Then) -> bool:
    if not pairs:
        return then()
    (pattern, operand), *others = pairs
    return pattern.fit(operand, search, (lambda: _all_fit(others, search, then)) if others else then)


def _inputs(expr: Expr) -> tuple[Any, ...]:
    """Node inputs of a call without the module that is called."""
    return tuple([n for n in expr.inputs if not isinstance(n, ModuleNode)])


def any_() -> Pattern:
    """A pattern for any node."""
    return AnyNode()


def const(value: Any = None) -> Pattern:
    """A pattern for a fixed value: a constant or a tensor of the module; equal to `value` if that is given."""
    return ConstantNode(value)


def rest() -> Pattern:
    """A pattern for all further inputs of a call; `match[rest]` is a tuple of nodes."""
    return Rest()


def call(callee: Any, *inputs: Pattern, commutative: bool | None = None, **attributes: Any) -> Pattern:
    """A pattern for a call.

    Args:
        callee: "conv2d" (an op), ".reshape" or ".__add__" (a tensor method), `F.relu` or "nn.relu", `M.Conv2d`. An
            operator is meant in every form, however it is spelt: "+", "__add__", `F.add`, "add".
        inputs: patterns of its node inputs, in order; none at all means any. Where an operator has a pattern for each
            operand, `const()` also stands for a number in the call.
        commutative: two inputs may come in either order; by default for add, mul, maximum, ...
        attributes: op attributes, arguments by name, or attributes of the module: a value, or a predicate of it.
            `stride=2` is `stride=(2, 2)`, an axis may count from the end, and `bias=True` asks for a tensor.

    Raises GraphError for what cannot be called, and for an attribute that it does not have.
    """
    target = Target(callee)
    for pattern in inputs:
        _check_pattern(f"an input of {callee!r}", pattern)
    commutes = target.commutes if commutative is None else commutative
    check_attributes(callee, target, attributes)
    return CallOf(target, inputs or None, attributes, commutes)


def either(patterns: Iterable[Pattern]) -> Pattern:
    """The first of several patterns that matches."""
    return OneOf(tuple(patterns))


def optional(callee: Any, inner: Pattern, **attributes: Any) -> Pattern:
    """`inner`, or a call on it."""
    return call(callee, inner, **attributes) | inner


def repeated(callee: Any, inner: Pattern, *, least: int = 0) -> Pattern:
    """`inner` behind any number of calls of `callee` with one input."""
    _check_pattern(f"what {callee!r} is called on", inner)
    return Repeated(Target(callee), inner, least)


def _check_pattern(what: str, value: Any) -> None:
    if not isinstance(value, Pattern):
        raise GraphError(
            f"pattern: {what} is {value!r}, a {type(value).__name__}; expected a pattern: any_(), const({value!r}), "
            "call(...)"
        )


# ---------------------------------------------------------------- matching


class NoPartError(GraphError, KeyError):
    """A match is asked for something that is no part of it."""

    __str__ = Exception.__str__  # that of KeyError quotes the message


@dataclass(frozen=True, slots=True)
class Match:
    """What the parts of a pattern stand for."""

    root: Node
    bindings: Mapping[int, Any]
    exprs: tuple[Expr, ...]  # of the calls that matched, the root's first

    def __getitem__(self, pattern: Pattern) -> Any:
        """The node of a part of the pattern.

        Raises NoPartError, which is a KeyError, for one that had no part in the match (an optional one).
        """
        if id(pattern) not in self.bindings:
            raise NoPartError(
                f"{pattern!r} has no part in this match: it is of another pattern, or an optional one that was left "
                "out; ask `part in m`, and use the objects of which the pattern was made"
            )
        return self.bindings[id(pattern)]

    def __contains__(self, pattern: Pattern) -> bool:
        return id(pattern) in self.bindings

    def expr(self, pattern: Pattern) -> Any:
        return self[pattern].expr


def match(pattern: Pattern, node: Node) -> Match | None:
    """The first way in which a node (and what is before it) matches, or None."""
    search = _Search()
    if not pattern.fit(node, search, lambda: True):
        return None
    return Match(node, search.bindings, tuple(search.exprs))


def is_fixed(node: Any) -> bool:
    """True for a constant, a tensor of the module, and a number beside an operator."""
    if not isinstance(node, Node):
        return isinstance(node, _NUMBERS)
    return isinstance(node.expr, Constant) or (isinstance(node.expr, GetAttr) and isinstance(node, TensorNode))


def constant_value(node: Node) -> np.ndarray | None:
    """The array of a constant, None for other values."""
    return node.expr.value.numpy() if isinstance(node.expr, Constant) else None


def fixed_value(node: Any) -> np.ndarray | None:
    """The value of a constant, of a tensor of the module, or of a number beside an operator; None for other nodes."""
    return _value_of(node) if is_fixed(node) else None


def _value_of(node: Any) -> np.ndarray:
    if not isinstance(node, Node):
        return np.asarray(node)
    return (node.expr.value if isinstance(node.expr, Constant) else module_of(node)).numpy()
