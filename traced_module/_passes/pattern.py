"""Patterns as MegEngine's users write them: `is_op(F.relu)(is_op(M.BatchNorm2d)(is_var()))`.

A pattern stands for an expression; `PatternMatcher` finds it. Each becomes a pattern of
`megengine.traced_module.patterns`, which does the matching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from megengine.core.errors import GraphError, PatternError
from megengine.module import Module
from megengine.traced_module.ir.expr import (
    Expr,
    is_apply_def,
    is_call_function,
    is_call_module,
    is_call_tensor_method,
    is_constant,
)
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.operators import ARITHMETIC
from megengine.traced_module.pattern_targets import Target, check_attributes, fits
from megengine.traced_module.patterns import CallOf, Pattern, any_, rest


class ExprPattern:
    """An expression that is looked for. Called with patterns of its inputs, or joined by operators, it nests.

    `_check_users` says whether something outside the match may use the value: by default nothing may.
    """

    _check_users = True

    def __call__(self, *args: ExprPattern) -> CallPattern:
        return CallPattern(self, *args)

    def __or__(self, other: ExprPattern) -> OrPattern:
        return OrPattern(self, other)

    def __getitem__(self, index: ExprPattern) -> CallPattern:
        return is_op("__getitem__")(self, *([index] if isinstance(index, ExprPattern) else []))

    def check_users(self, check: bool = True) -> Any:
        """Whether a match needs every user of the value to be part of it; returns the pattern."""
        self._check_users = check
        return self

    def has_attr(self, **attrs: Any) -> ExprPattern:
        """Only a `ModulePattern` has attributes; raises PatternError."""
        raise PatternError(
            f"pattern {self!r}: has_attr{tuple(attrs)}: expected the pattern of a module, before its inputs are given: "
            "is_op(M.Conv2d).has_attr(stride=2)(is_var()); use has_params for the arguments of a function"
        )

    def has_params(self, **params: Any) -> ExprPattern:
        """Only a `FunctionPattern` has arguments; raises PatternError."""
        raise PatternError(
            f"pattern {self!r}: has_params{tuple(params)}: expected the pattern of a function, before its inputs are "
            "given: is_op(F.concat).has_params(axis=1)(is_var()); use has_attr for the attributes of a module"
        )

    def has_param(self, **params: Any) -> ExprPattern:
        """As has_params."""
        return self.has_params(**params)

    def fits(self, expr: Expr) -> bool:
        """True if an expression is what the pattern looks for, without its inputs."""
        raise NotImplementedError(f"{type(self).__name__} has no fits; derive from one of the patterns")

    def parts(self) -> tuple[ExprPattern, ...]:
        """Patterns of which it is made."""
        return ()

    def native(self, known: dict[int, Pattern]) -> Pattern:
        """The same as a pattern of the package; one object stands for one node."""
        if id(self) not in known:
            known[id(self)] = self._native(known)
        return known[id(self)]

    def _native(self, known: dict[int, Pattern]) -> Pattern:
        return any_().where(lambda node: self.fits(node.expr))

    def __repr__(self) -> str:
        return type(self).__name__


def _binary(method: str, *, turned: bool = False) -> Callable[[ExprPattern, Any], CallPattern]:
    def make(self: ExprPattern, other: ExprPattern) -> CallPattern:
        if not isinstance(other, ExprPattern):
            raise GraphError(f"pattern: {method} with a {type(other).__name__}; expected a pattern, as is_const()")
        operands = (other, self) if turned else (self, other)
        return is_op(method)(*operands)

    return make


for _name in ARITHMETIC:
    setattr(ExprPattern, f"__{_name}__", _binary(f"__{_name}__"))
    setattr(ExprPattern, f"__r{_name}__", _binary(f"__{_name}__", turned=True))
    setattr(ExprPattern, f"__i{_name}__", _binary(f"__i{_name}__"))


class _Fits(Target):
    """The call of whatever a pattern looks for."""

    def __init__(self, pattern: ExprPattern) -> None:
        self.pattern = pattern

    def matches(self, expr: Expr) -> bool:
        return isinstance(expr, Expr) and self.pattern.fits(expr)

    def keys(self) -> None:
        """Of what kind the call is is not known."""

    def operands(self, expr: Expr) -> None:
        """Only nodes are held against the inputs of a pattern."""


class CallPattern(ExprPattern):
    """A call with patterns for its inputs, in order (of a module call, without the module)."""

    def __init__(self, op: ExprPattern, *args: ExprPattern) -> None:
        for arg in (op, *args):
            if not isinstance(arg, ExprPattern):
                raise GraphError(f"pattern: {arg!r} is a {type(arg).__name__}; expected a pattern")
        self.op, self.args, self._match_all_args = op, list(args), True

    def not_all_args(self) -> CallPattern:
        """Further inputs may follow; returns the pattern."""
        self._match_all_args = False
        return self

    def check_users(self, check: bool = True) -> CallPattern:
        """As `ExprPattern.check_users`, for what is called too."""
        self.op.check_users(check)
        return super().check_users(check)

    def fits(self, expr: Expr) -> bool:
        return self.op.fits(expr)

    def parts(self) -> tuple[ExprPattern, ...]:
        return (self.op, *self.args)

    def _native(self, known: dict[int, Pattern]) -> Pattern:
        inputs = [arg.native(known) for arg in self.args]
        inputs += [] if self._match_all_args else [rest()]
        return CallOf(_Fits(self.op), tuple(inputs))

    def __repr__(self) -> str:
        return f"{self.op!r}({','.join(map(repr, self.args))})"


class OrPattern(ExprPattern):
    """The first of two patterns that matches."""

    def __init__(self, left: ExprPattern, right: ExprPattern) -> None:
        if not isinstance(left, ExprPattern) or not isinstance(right, ExprPattern):
            raise GraphError("pattern: | with something that is no pattern")
        self.left, self.right = left, right

    def check_users(self, check: bool = True) -> OrPattern:
        """As `ExprPattern.check_users`, for both."""
        self.left.check_users(check)
        self.right.check_users(check)
        return super().check_users(check)

    def fits(self, expr: Expr) -> bool:
        return self.left.fits(expr) or self.right.fits(expr)

    def parts(self) -> tuple[ExprPattern, ...]:
        return (self.left, self.right)

    def _native(self, known: dict[int, Pattern]) -> Pattern:
        return self.left.native(known) | self.right.native(known)

    def __repr__(self) -> str:
        return f"({self.left!r}|{self.right!r})"


class _Called(ExprPattern):
    """The call of one thing, whose attributes may be given."""

    def __init__(self, target: Any) -> None:
        self.target, self.attrs = target, {}

    def _asks(self, attrs: dict[str, Any]) -> Any:
        check_attributes(self.target, Target(self.target), attrs)
        self.attrs.update(attrs)
        return self

    def _has_attrs(self, expr: Expr, attributes: Mapping[str, Any]) -> bool:
        """True if the call has what is asked for; an axis may count from the end of its first tensor."""
        rank = next((n.spec.ndim for n in expr.inputs if isinstance(n, TensorNode)), 0)
        return all(
            name in attributes and fits(name, attributes[name], value, rank) for name, value in self.attrs.items()
        )

    def __repr__(self) -> str:
        return getattr(self.target, "__name__", self.target)


class ModulePattern(_Called):
    """The call of a module of a class, whose attributes may be given."""

    def has_attr(self, **attrs: Any) -> ModulePattern:
        """Attributes of the module that have to be equal, as its ops read them; returns the pattern.

        Raises GraphError for one that no module of the class has.
        """
        return self._asks(attrs)

    def fits(self, expr: Expr) -> bool:
        if not is_call_module(expr, self.target):
            return False
        return self._has_attrs(expr, object.__getattribute__(expr.inputs[0].owner, "__dict__"))


class FunctionPattern(_Called):
    """The call of a function, whose arguments may be given by name."""

    def has_params(self, **params: Any) -> FunctionPattern:
        """Arguments that have to be equal, as the function reads them; returns the pattern.

        Raises GraphError for one that the function does not have.
        """
        return self._asks(params)

    def fits(self, expr: Any) -> bool:
        return is_call_function(expr, self.target) and self._has_attrs(expr, expr.named_args if self.attrs else {})


class TensorMethodPattern(_Called):
    """The call of a tensor's method. Raises GraphError for one that tensors do not have."""

    def __init__(self, method: str) -> None:
        Target(f".{method}")
        super().__init__(method)

    def fits(self, expr: Expr) -> bool:
        return is_call_tensor_method(expr, self.target)


class ApplyDefPattern(_Called):
    """An applied op, by name."""

    def fits(self, expr: Expr) -> bool:
        return is_apply_def(expr, self.target)


class VarPattern(ExprPattern):
    """Any value."""

    def fits(self, expr: Expr) -> bool:
        return True

    def __repr__(self) -> str:
        return "var"


class AnyPattern(VarPattern):
    """Any value."""

    def __repr__(self) -> str:
        return "any"


class ConstantPattern(ExprPattern):
    """A constant, which may be used elsewhere too."""

    _check_users = False

    def fits(self, expr: Expr) -> bool:
        return is_constant(expr)

    def __repr__(self) -> str:
        return "const"


def is_op(target: Any) -> ExprPattern:
    """A pattern for a call: of a module of a class, a function, or a tensor's method by name ("sum", "__add__").

    Raises GraphError for anything else, and for a method that tensors do not have.
    """
    if isinstance(target, type) and issubclass(target, Module):
        return ModulePattern(target)
    if isinstance(target, str):
        return TensorMethodPattern(target)
    if callable(target) and not isinstance(target, type):
        return FunctionPattern(target)
    raise GraphError(f"is_op: {target!r}; expected a class of modules, a function, or the name of a tensor's method")


def is_const() -> ConstantPattern:
    """A pattern for a constant."""
    return ConstantPattern()


def is_var() -> VarPattern:
    """A pattern for any value."""
    return VarPattern()


def any_node() -> AnyPattern:
    """A pattern for any value."""
    return AnyPattern()


def walk(pattern: ExprPattern) -> Iterator[ExprPattern]:
    """The pattern's parts in the order in which they are met, itself last."""
    for part in pattern.parts():
        yield from walk(part)
    yield pattern
