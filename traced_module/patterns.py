"""Patterns: what to look for in a graph, as frozen values, for graphs of ops and of calls alike.

>>> x, w = any_(), any_()
>>> conv_relu = call("relu", call("conv2d", x, w))
>>> found = match(conv_relu, node)
>>> found[x]  # the node that x stands for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.errors import GraphError
from megengine.traced_module.ir.expr import Constant, Expr, GetAttr, Input
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode, module_of
from megengine.traced_module.pattern_targets import Key, Target, check_attributes, fits, key_of

_NUMBERS = (bool, int, float, np.number)


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


@dataclass(frozen=True, slots=True, eq=False)
class AnyNode(Pattern):
    """Any node."""


@dataclass(frozen=True, slots=True, eq=False)
class ConstantNode(Pattern):
    """A value that is fixed: a constant, or a tensor of the module."""

    value: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Where(Pattern):
    """A pattern with a condition on the node."""

    inner: Pattern
    condition: Callable[[Any], bool]


@dataclass(frozen=True, slots=True, eq=False)
class OneOf(Pattern):
    """The first of several patterns that matches."""

    choices: tuple[Pattern, ...]
    keys: tuple[set[Key] | None, ...] = ()  # of each choice, so that most are left out without a look at them


@dataclass(frozen=True, slots=True, eq=False)
class OutputOf(Pattern):
    """One result of an expression."""

    inner: Pattern
    index: int


@dataclass(frozen=True, slots=True, eq=False)
class Rest(Pattern):
    """All further inputs of a call; bound as a tuple. Only as the last input."""


@dataclass(frozen=True, slots=True, eq=False)
class Repeated(Pattern):
    """`inner` behind any number of calls of one input each (at least `least`)."""

    target: Target
    inner: Pattern
    least: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class CallOf(Pattern):
    """A call: the patterns stand for its node inputs in order (of a module call, without the module)."""

    target: Target
    inputs: tuple[Pattern, ...] | None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    commutative: bool = False


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
    for given in inputs:
        _check_pattern(f"an input of {callee!r}", given)
    commutes = target.commutes if commutative is None else commutative
    check_attributes(callee, target, attributes)
    return CallOf(target, inputs or None, attributes, commutes)


def either(patterns: Iterable[Pattern]) -> Pattern:
    """The first of several patterns that matches."""
    choices = tuple(patterns)
    return OneOf(choices, tuple(map(root_keys, choices)))


def optional(callee: Any, inner: Pattern, **attributes: Any) -> Pattern:
    """`inner`, or a call on it."""
    return call(callee, inner, **attributes) | inner


def repeated(callee: Any, inner: Pattern, *, least: int = 0) -> Pattern:
    """`inner` behind any number of calls of `callee` with one input."""
    _check_pattern(f"what {callee!r} is called on", inner)
    return Repeated(Target(callee), inner, least)


def root_keys(pattern: Pattern) -> set[Key] | None:
    """What the expression at the root of a match can call (`key_of`); None for anything."""
    if isinstance(pattern, CallOf) or (isinstance(pattern, Repeated) and pattern.least):
        return pattern.target.keys()
    if isinstance(pattern, Where):
        return root_keys(pattern.inner)
    if isinstance(pattern, OneOf):
        return None if any(k is None for k in pattern.keys) else set().union(*(k or () for k in pattern.keys))
    return None


def _check_pattern(what: str, given: Any) -> None:
    if not isinstance(given, Pattern):
        raise GraphError(
            f"pattern: {what} is {given!r}, a {type(given).__name__}; expected a pattern: any_(), const({given!r}), "
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
        """The expression that makes the node of a part."""
        return self[pattern].expr


@dataclass(frozen=True, slots=True)
class _State:
    bindings: Mapping[int, Any]
    exprs: tuple[Expr, ...] = ()

    def bind(self, pattern: Pattern, value: Any) -> _State | None:
        have = self.bindings.get(id(pattern))
        if have is not None:
            return self if have is value or have == value else None
        return _State({**self.bindings, id(pattern): value}, self.exprs)


def match(pattern: Pattern, node: Node) -> Match | None:
    """The first way in which a node (and what is before it) matches, or None."""
    for state in _ways(pattern, node, _State({})):
        return Match(node, state.bindings, state.exprs)
    return None


def constant_value(node: Node) -> np.ndarray | None:
    """The array of a constant, None for other values."""
    return node.expr.value.numpy() if isinstance(node.expr, Constant) else None


def fixed_value(node: Any) -> np.ndarray | None:
    """The value of a constant, of a tensor of the module, or of a number beside an operator; None for other nodes."""
    if not isinstance(node, Node):
        return np.asarray(node) if isinstance(node, _NUMBERS) else None
    if isinstance(node.expr, GetAttr) and isinstance(node, TensorNode):
        return module_of(node).numpy()
    return constant_value(node)


def _ways(pattern: Pattern, node: Any, state: _State) -> Iterator[_State]:
    if isinstance(pattern, OneOf):
        key = key_of(node.expr) if isinstance(node, Node) else None
        for choice, keys in zip(pattern.choices, pattern.keys, strict=True):
            if keys is not None and key not in keys:
                continue
            for found in _ways(choice, node, state):
                bound = found.bind(pattern, node)
                if bound is not None:
                    yield bound
        return
    if isinstance(pattern, Where):
        for found in _ways(pattern.inner, node, state):
            if (bound := found.bind(pattern, node)) is not None and pattern.condition(node):
                yield bound
        return
    if isinstance(pattern, Repeated):
        yield from _repeats(pattern, node, state)
        return
    bound = state.bind(pattern, node)
    if bound is None or not (isinstance(node, Node) or isinstance(pattern, ConstantNode)):
        return
    if isinstance(pattern, ConstantNode):
        value = fixed_value(node)
        if value is not None and (pattern.value is None or np.array_equal(value, pattern.value)):
            yield bound
    elif isinstance(pattern, OutputOf):
        outputs = node.expr.outputs
        if pattern.index < len(outputs) and outputs[pattern.index] is node:
            # the first result stands for the expression, so that patterns of several of its results agree
            yield from _ways(pattern.inner, outputs[0], bound)
    elif isinstance(pattern, CallOf):
        yield from _calls(pattern, node, bound)
    else:
        yield bound


def _repeats(pattern: Repeated, node: Any, state: _State) -> Iterator[_State]:
    if not isinstance(node, Node):
        return
    chain = [node]
    exprs: list[Expr] = []
    while pattern.target.matches(chain[-1].expr):
        given = _inputs(chain[-1].expr)
        if len(given) != 1:
            break
        exprs.append(chain[-1].expr)
        chain.append(given[0])
    for length in range(len(chain) - 1, pattern.least - 1, -1):  # the longest chain first
        for found in _ways(pattern.inner, chain[length], state):
            bound = found.bind(pattern, node)
            if bound is not None:
                yield _State(bound.bindings, (*bound.exprs, *exprs[:length]))


def _inputs(expr: Expr) -> tuple[Any, ...]:
    """Node inputs of a call without the module that is called."""
    return tuple(n for n in expr.inputs if not isinstance(n, ModuleNode))


def _calls(pattern: CallOf, node: Any, state: _State) -> Iterator[_State]:
    expr = node.expr
    if isinstance(expr, Input) or not pattern.target.matches(expr):
        return
    state = _State(state.bindings, (*state.exprs, expr))
    given = _given(pattern, expr)
    yield from _one_order(pattern, expr, given, state, turned=False)
    if pattern.commutative and (len(given) == 2 or pattern.attributes):
        yield from _one_order(pattern, expr, given[::-1], state, turned=True)


def _given(pattern: CallOf, expr: Expr) -> tuple[Any, ...]:
    """What is held against the inputs of a pattern: nodes, and numbers where it has a place for each operand."""
    operands = pattern.target.operands(expr)
    if operands is None:
        return _inputs(expr)
    everything = pattern.inputs is not None and len(pattern.inputs) == len(operands)
    return operands if everything else tuple(v for v in operands if isinstance(v, Node))


def _one_order(pattern: CallOf, expr: Expr, given: tuple[Any, ...], state: _State, *, turned: bool) -> Iterator[_State]:
    if not _attributes_fit(pattern, expr, turned=turned):
        return
    if pattern.inputs is None:
        yield state
    else:
        yield from _inputs_fit(pattern.inputs, given, state)


def _inputs_fit(patterns: Sequence[Pattern], given: Sequence[Any], state: _State) -> Iterator[_State]:
    if not patterns:
        if not given:
            yield state
        return
    first, *others = patterns
    if isinstance(first, Rest):
        bound = state.bind(first, tuple(given))
        if bound is not None:
            yield bound
        return
    if given:
        for found in _ways(first, given[0], state):
            yield from _inputs_fit(others, given[1:], found)


def _attributes_fit(pattern: CallOf, expr: Expr, *, turned: bool) -> bool:
    if not pattern.attributes:
        return True
    have = pattern.target.attributes(expr, pattern.attributes, turned=turned)
    rank = max((n.spec.ndim for n in (*_inputs(expr), *expr.outputs) if isinstance(n, TensorNode)), default=0)
    return all(name in have and fits(name, have[name], wanted, rank) for name, wanted in pattern.attributes.items())
