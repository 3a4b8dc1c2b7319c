"""Patterns: what to look for in a graph, as frozen values, for graphs of ops and of calls alike.

>>> x, w = any_(), any_()
>>> conv_relu = call("relu", call("conv2d", x, w))
>>> found = match(conv_relu, node)
>>> found[x]  # the node that x stands for
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megengine.core.errors import GraphError, nearest
from megengine.dispatch import registry
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr, GetAttr, Input
from megengine.traced_module.node import ModuleNode, Node, TensorNode
from megengine.traced_module.tracing.calls import qualified_name

COMMUTATIVE = frozenset({"add", "mul", "maximum", "minimum", "and", "or", "xor", "eq", "ne"})


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """Something that a node can match. One pattern object stands for one node wherever it occurs."""

    def __or__(self, other: Pattern) -> Pattern:
        return OneOf((self, other))

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
class Target:
    """What is called: an op, a function, a tensor method, a module of a class."""

    kind: str
    name: Any

    def matches(self, expr: Expr) -> bool:
        """True if the expression calls it."""
        if isinstance(expr, Apply):
            return self.kind == "op" and expr.op == self.name
        if isinstance(expr, CallFunction):
            return self.kind == "function" and expr.qualified == self.name
        if not isinstance(expr, CallMethod):
            return False
        if expr.method == "__call__":
            return self.kind == "module" and issubclass(expr.inputs[0].module_type, self.name)
        return self.kind == "method" and expr.method == self.name

    @property
    def commutes(self) -> bool:
        """True for what gives the same with its operands exchanged."""
        return self.kind != "module" and self.name.rpartition(".")[2].strip("_") in COMMUTATIVE


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


def target_of(callee: Any) -> Target:
    """What `callee` names: the name of an op, `.name` of a tensor method, a public function, a class of modules."""
    if isinstance(callee, str) and callee.startswith("."):
        methods = [f".{name}" for name in dir(Tensor) if callable(getattr(Tensor, name))]
        if callee not in methods:
            raise GraphError(f"pattern: tensors have no method {callee!r}{nearest(callee, methods)}")
        return Target("method", callee[1:])
    if isinstance(callee, str):
        if callee not in registry:
            raise GraphError(f"pattern: unknown op {callee!r}{nearest(callee, registry)}; methods are written '.name'")
        return Target("op", callee)
    if isinstance(callee, type) and issubclass(callee, Module):
        return Target("module", callee)
    if callable(callee):
        return Target("function", qualified_name(callee))
    raise GraphError(f"pattern: {callee!r} cannot be called; expected an op's name, '.method', a function or a class")


def call(callee: Any, *inputs: Pattern, commutative: bool | None = None, **attributes: Any) -> Pattern:
    """A pattern for a call.

    Args:
        callee: "conv2d" (an op), ".reshape" or ".__add__" (a tensor method), `F.relu`, `M.Conv2d`.
        inputs: patterns of its node inputs, in order; none at all means any.
        commutative: two inputs may come in either order; by default for add, mul, maximum, ...
        attributes: op attributes, arguments by name, or attributes of the module: a value, or a predicate of it.
    """
    target = target_of(callee)
    for given in inputs:
        _check_pattern(f"an input of {callee!r}", given)
    commutes = target.commutes and len(inputs) == 2 if commutative is None else commutative
    return CallOf(target, inputs or None, attributes, commutes)


def optional(callee: Any, inner: Pattern, **attributes: Any) -> Pattern:
    """`inner`, or a call on it."""
    return call(callee, inner, **attributes) | inner


def repeated(callee: Any, inner: Pattern, *, least: int = 0) -> Pattern:
    """`inner` behind any number of calls of `callee` with one input."""
    _check_pattern(f"what {callee!r} is called on", inner)
    return Repeated(target_of(callee), inner, least)


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

    root: TensorNode
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
        return replace(self, bindings={**self.bindings, id(pattern): value})


def match(pattern: Pattern, node: Node) -> Match | None:
    """The first way in which a node (and what is before it) matches, or None."""
    for state in _ways(pattern, node, _State({})):
        return Match(node, state.bindings, state.exprs)  # type: ignore[arg-type]
    return None


def fixed_value(node: Node) -> np.ndarray | None:
    """The value of a constant or of a tensor of the module; None for other nodes."""
    if isinstance(node.expr, Constant):
        return node.expr.value.numpy()
    if isinstance(node.expr, GetAttr) and isinstance(node, TensorNode):
        return node.graph.module_of(node).numpy()
    return None


def _ways(pattern: Pattern, node: Any, state: _State) -> Iterator[_State]:
    if isinstance(pattern, OneOf):
        for choice in pattern.choices:
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
    if bound is None:
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
                yield replace(bound, exprs=(*bound.exprs, *exprs[:length]))


def _inputs(expr: Expr) -> tuple[Any, ...]:
    """Node inputs of a call without the module that is called."""
    return tuple(n for n in expr.inputs if not isinstance(n, ModuleNode))


def _calls(pattern: CallOf, node: Any, state: _State) -> Iterator[_State]:
    expr = node.expr
    if isinstance(expr, Input) or not pattern.target.matches(expr) or not _attributes_fit(pattern, expr):
        return
    state = replace(state, exprs=(*state.exprs, expr))
    if pattern.inputs is None:
        yield state
        return
    given = _inputs(expr)
    orders = [given, given[::-1]] if pattern.commutative and len(given) == 2 else [given]
    for order in orders:
        yield from _inputs_fit(pattern.inputs, order, state)


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


def _attributes_fit(pattern: CallOf, expr: Expr) -> bool:
    if not pattern.attributes:
        return True
    if isinstance(expr, Apply):
        have: Mapping[str, Any] = expr.attrs
    elif pattern.target.kind == "module":
        have = _ModuleAttributes(expr.inputs[0].owner)
    else:
        assert isinstance(expr, Call)
        have = expr.named_args
    for name, wanted in pattern.attributes.items():
        if name not in have:
            return False
        value = have[name]
        if not (wanted(value) if callable(wanted) else _equal(value, wanted)):
            return False
    return True


class _ModuleAttributes(Mapping):
    def __init__(self, module: Module) -> None:
        self._own = object.__getattribute__(module, "__dict__")

    def __getitem__(self, name: str) -> Any:
        return self._own[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


def _equal(a: Any, b: Any) -> bool:
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) or isinstance(b, np.ndarray) else a == b
