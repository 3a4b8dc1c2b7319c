"""What a pattern calls: an operation in every spelling (op, function, method, operator), or modules of a class."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from megengine.core.dtype import as_dtype
from megengine.core.errors import GraphError, MegEngineError, nearest
from megengine.dispatch import get_op, registry
from megengine.dispatch.public import PublicFunction, public_functions
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Call, Callee, Constant, Expr
from megengine.traced_module.ir.functions import qualified_name, signature_of, wrapped_functions
from megengine.traced_module.ir.node import Node
from megengine.traced_module.operators import BINARY, COMMUTATIVE, COMPARED

_MODULE: Callee = ("module", None)
OTHER_ORDER = frozenset({"batch_norm"})  # functions whose tensors come in another order than those of their op


class _Operation(NamedTuple):
    """One operation: what an expression may call for it."""

    name: str
    spellings: Mapping[Callee, bool]  # what is called -> whether its operands come the other way round
    operands: tuple[str, ...] = ()  # names of the operands of an operator


class Target:
    """What is called: an operation, or modules of a class.

    An operation is matched in every spelling: `Target("add")`, `Target(F.add)`, `Target("+")` and `Target(".__add__")`
    are the op `add`, the function, `x + y`, `x += y` and `1 + x`, in graphs of calls and of ops.

    Args:
        callee: an op's name, a public function or its printed name ("nn.conv2d"), an operator's sign, a tensor method
            with a dot in front, or a class of modules.

    Raises GraphError for anything else, with the nearest name.
    """

    __slots__ = ("_operation", "_spellings", "module_class")

    def __init__(self, callee: Any) -> None:
        self.module_class = callee if isinstance(callee, type) and issubclass(callee, Module) else None
        self._operation = _Operation("", {_MODULE: False}) if self.module_class else _operation_of(callee)
        self._spellings = self._operation.spellings

    def matches(self, expr: Expr) -> bool:
        if expr.callee not in self._spellings:
            return False
        return self.module_class is None or issubclass(expr.inputs[0].module_type, self.module_class)

    def keys(self) -> set[Callee] | None:
        """What an expression that matches can be (`Expr.callee`); None for anything."""
        return set(self._operation.spellings)

    @property
    def commutes(self) -> bool:
        """True for an operation that gives the same with its operands exchanged."""
        return self._operation.name in COMMUTATIVE

    def operands(self, expr: Expr) -> tuple[Any, ...] | None:
        """Operands of an operator in the order of its function, nodes and numbers; None for other calls."""
        if not self._operation.operands:
            return None
        operands = tuple(expr.named_args.values() if isinstance(expr, Call) else expr.inputs)
        operands = operands[: len(self._operation.operands)]
        return operands[::-1] if self._operation.spellings[expr.callee] else operands

    def attributes(self, expr: Any, names: Iterable[str], *, turned: bool = False) -> Mapping[str, Any]:
        """What a call has by these names, defaults too; with its first two operands exchanged if it is `turned`."""
        if self.module_class is not None:
            module = expr.inputs[0].owner
            own = object.__getattribute__(module, "__dict__")
            kind = type(module)
            present = [n for n in names if n in own or not callable(inspect.getattr_static(kind, n, callable))]
            return {name: own[name] if name in own else getattr(module, name) for name in present}
        operands = self.operands(expr)
        if operands is not None:  # by the names that the function has for them; constants stand for their values
            values = [_number(v) for v in (operands[::-1] if turned else operands)]
            named = dict(zip(self._operation.operands, values, strict=False))
            return {**named, **expr.attrs} if isinstance(expr, Apply) else named
        if isinstance(expr, Apply):
            return expr.attrs
        parameters = expr.signature.parameters.values()
        named = {p.name: p.default for p in parameters if p.default is not p.empty} | expr.named_args
        return _turned(named) if turned else named

    def known_attributes(self) -> set[str] | None:
        """Names that `attributes` may have; None for what is not known."""
        if self.module_class is not None:
            # derived classes count too; one that computes names has to be asked for by its own name
            names_of_class: set[str] = set()
            todo = [self.module_class]
            while todo:
                at = todo.pop()
                todo += at.__subclasses__()
                for base in at.__mro__[:-1]:
                    own = {name: inspect.unwrap(v) if callable(v) else v for name, v in vars(base).items()}
                    functions = [v for v in own.values() if isinstance(v, FunctionType)]
                    if at is self.module_class and base is not Module and any(map(_sets_freely, functions)):
                        return None
                    names_of_class.update(*map(_stored, functions), own.get("__annotations__", ()))
                    names_of_class |= {name for name, v in own.items() if not callable(v)}
            return {name for name in names_of_class if not name.startswith("__")}
        known = set(self._operation.operands)
        for kind, name in self._operation.spellings:
            names = (
                _op_attributes(name) if kind == "op" else () if self._operation.operands else _parameters(kind, name)
            )
            if names is None:
                return None
            known.update(names)
        return known


def _turned(named: Mapping[str, Any]) -> Mapping[str, Any]:
    (first, a), (second, b), *others = [*named.items(), *[("", None)] * 2]
    return {first: b, second: a, **dict(others)}


def _number(value: Any) -> Any:
    """The value of a constant; other values as they are."""
    return value.expr.value.numpy() if isinstance(value, Node) and isinstance(value.expr, Constant) else value


# ---------------------------------------------------------------- names of operations


def _operation_of(callee: Any) -> _Operation:
    if callable(callee):
        name = qualified_name(callee)
        return _operations().get(name) or _Operation(name, {("function", name): False})
    if not isinstance(callee, str):
        raise GraphError(
            f"pattern: {callee!r} cannot be called; expected an op's name, '.method', a function or a class"
        )
    if callee in _operations():
        return _operations()[callee]
    if callee.startswith("."):
        methods = [f".{name}" for name in dir(Tensor) if callable(getattr(Tensor, name))]
        if callee not in methods:
            raise GraphError(f"pattern: tensors have no method {callee!r}{nearest(callee, methods)}")
        return _Operation(callee, {("method", callee[1:]): False})
    if callee not in registry:
        raise GraphError(f"pattern: unknown op {callee!r}{nearest(callee, registry)}; methods are written '.name'")
    return _Operation(callee, {("op", callee): False})


@functools.cache
def _operations() -> dict[str, _Operation]:
    """Operations of the public functions by every name: sign, ".method", function, printed function, op."""
    bases: dict[str, list[PublicFunction]] = {}
    for record in public_functions.values():
        for base in {method.strip("_") for method in record.methods if method.startswith("__")}:
            bases.setdefault(base, []).append(record)
    signs = {**BINARY, **COMPARED, "invert": "~"}  # not the minus and plus of one operand, which share their signs
    operators = {base for base in bases if f"r{base}" in bases or base in signs or base in registry}
    operations = [_operator(base, bases) for base in operators]
    in_operators = {key for operation in operations for key in operation.spellings}
    groups: dict[str, dict[Callee, bool]] = {}
    for qualified, record in public_functions.items():
        keys = [("function", qualified), *(("method", name) for name in record.methods)]
        if in_operators.isdisjoint(keys):
            named = record.methods[0] if record.methods and record.name not in registry else record.name
            groups.setdefault(named, {}).update(dict.fromkeys(keys, False))
    for name, spellings in groups.items():
        if name in registry and name not in OTHER_ORDER:
            spellings["op", name] = False
        operations.append(_Operation(name, spellings))
    return {name: operation for operation in operations for name in _names(operation, signs)}


def _names(operation: _Operation, signs: Mapping[str, str]) -> Iterable[str]:
    if operation.operands:
        yield signs.get(operation.name, operation.name)
    for kind, name in operation.spellings:
        yield f".{name}" if kind == "method" else name
        if kind == "method" and operation.operands:
            yield name
        if kind == "function":
            home, _, last = name.rpartition(".")
            yield f"{home.rpartition('.')[2]}.{last}"


def _operator(base: str, bases: Mapping[str, list[PublicFunction]]) -> _Operation:
    records = [*bases[base], *(r for r in public_functions.values() if r.name == base)]
    spellings: dict[Callee, bool] = {("method", f"__{base}__"): False}
    for form, turned in ((f"i{base}", False), (f"r{base}", True)):
        if form in bases:
            spellings["method", f"__{form}__"] = turned
    for record in records:
        spellings["function", record.qualified] = False
    spellings.update({("op", name): False for name in (base, *(r.name for r in records)) if name in registry})
    return _Operation(base, spellings, tuple(records[0].signature.parameters))


# ---------------------------------------------------------------- attributes


def check_attributes(callee: Any, target: Target, names: Iterable[str]) -> None:
    """Refuse names of attributes that no such call has. Raises GraphError with the nearest one that it has."""
    known = target.known_attributes()
    for name in names:
        if known is not None and name not in known:
            hint = nearest(name, known) or (
                f"; it has {', '.join(sorted(n for n in known if n[0] != '_'))}" if known else "; it has none"
            )
            raise GraphError(f"pattern: {_shown(callee)} has no attribute {name!r}{hint}")


def _shown(callee: Any) -> str:
    return repr(callee) if isinstance(callee, str) else getattr(callee, "__name__", repr(callee))


@functools.lru_cache(maxsize=512)
def _op_attributes(name: str) -> tuple[str, ...]:
    op = get_op(name)
    parameters = inspect.signature(op.infer).parameters.values()
    names = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        names += [attribute for sample in op.samples() for attribute in sample.attrs]
    return tuple(dict.fromkeys(names))


def _parameters(kind: str, name: str) -> tuple[str, ...] | None:
    """Names of a function's or method's parameters; None where any name will do."""
    record = public_functions.get(name)
    function = getattr(Tensor, name) if kind == "method" else record.function if record else wrapped_functions.get(name)
    parameters = {} if function is None else signature_of(function).parameters
    known = function is not None and not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return tuple(parameters) if known else None


def _sets_freely(function: FunctionType) -> bool:
    """True if names of attributes may be computed in a method."""
    return not {"setattr", "__dict__", "__setattr__", "vars"}.isdisjoint(function.__code__.co_names)


@functools.lru_cache(maxsize=4096)
def _stored(function: FunctionType) -> frozenset[str]:
    return frozenset(i.argval for i in dis.get_instructions(function) if i.opname == "STORE_ATTR")


# ---------------------------------------------------------------- values


def fits(name: str, value: Any, wanted: Any, rank: int) -> bool:
    """True if an attribute of a call has a value, or one that a predicate accepts.

    Values are compared as the op reads them: `2` is `(2, 2)`, an axis counts from either end of the `rank` axes of the
    call, and a dtype may be written in any way. Of tensors True and False ask whether there is one.
    """
    if callable(wanted) and not isinstance(wanted, (type, Tensor)):
        return bool(wanted(value))
    if name == "dtype" or isinstance(wanted, (type, np.dtype)):
        try:
            return as_dtype(value) == as_dtype(wanted)
        except (MegEngineError, TypeError, ValueError):
            return value == wanted
    if isinstance(wanted, bool) and (value is None or isinstance(value, Tensor)):
        return (value is not None) == wanted
    if "ax" in name or name == "perm":
        return _same(_from_the_front(value, rank), _from_the_front(wanted, rank))
    return _same(value, wanted)


def _from_the_front(value: Any, rank: int) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_from_the_front(v, rank) for v in value)
    return value + rank if isinstance(value, int) and not isinstance(value, bool) and value < 0 else value


def _same(a: Any, b: Any) -> bool:
    """True for equal values; a number equals the sequences of nothing but itself."""
    if isinstance(a, (np.ndarray, Tensor)) or isinstance(b, (np.ndarray, Tensor)):
        a, b = (v.numpy() if isinstance(v, Tensor) else v for v in (a, b))
        return not isinstance(a, (Node, str)) and not isinstance(b, (Node, str)) and np.array_equal(a, b)
    if _is_sequence(a) and _is_sequence(b):
        return len(a) == len(b) and all(map(_same, a, b))
    if _is_sequence(a) and isinstance(b, (int, float)):
        return len(a) > 0 and all(_same(v, b) for v in a)
    if _is_sequence(b) and isinstance(a, (int, float)):
        return _same(b, a)
    return bool(a == b)


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)
