"""What a pattern calls: an op, a function, a tensor method, a module of a class, an operator in any spelling."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import numpy as np

from megengine.core.dtype import as_dtype
from megengine.core.errors import GraphError, MegEngineError, nearest
from megengine.dispatch import get_op, registry
from megengine.dispatch.public import PublicFunction, public_functions
from megengine.module import Module
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply, Call, CallFunction, CallMethod, Constant, Expr
from megengine.traced_module.ir.functions import qualified_name, signature_of, wrapped_functions
from megengine.traced_module.ir.node import Node
from megengine.traced_module.operators import BINARY, COMMUTATIVE, COMPARED

Key = tuple[str, Any]


def key_of(expr: Expr) -> Key:
    """What an expression calls, as `Target.keys` has it."""
    if isinstance(expr, Apply):
        return ("op", expr.op)
    if isinstance(expr, CallFunction):
        return ("function", expr.qualified)
    if isinstance(expr, CallMethod):
        return ("module", None) if expr.method == "__call__" else ("method", expr.method)
    return ("", None)


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """What is called: an op, a function, a tensor method, a module of a class."""

    kind: str
    name: Any

    def matches(self, expr: Expr) -> bool:
        """True if the expression calls it."""
        if self.kind != "module":
            return key_of(expr) == (self.kind, self.name)
        called = isinstance(expr, CallMethod) and expr.method == "__call__"
        return called and issubclass(expr.inputs[0].module_type, self.name)

    def keys(self) -> set[Key] | None:
        """What an expression that matches can be (`key_of`); None for anything."""
        return {(self.kind, None if self.kind == "module" else self.name)}

    @property
    def commutes(self) -> bool:
        """True for what gives the same with its operands exchanged."""
        return self.kind != "module" and self.name.rpartition(".")[2].strip("_") in COMMUTATIVE

    def operands(self, expr: Expr) -> tuple[Any, ...] | None:
        """Operands of an operator as they are written, nodes and numbers; None for other calls."""
        del expr
        return None

    def attributes(self, expr: Any, *, turned: bool = False) -> Mapping[str, Any]:
        """What a call has by name; with its first two operands exchanged if it is `turned`."""
        if isinstance(expr, Apply):
            return expr.attrs
        if self.kind == "module":
            return _ModuleAttributes(expr.inputs[0].owner)
        return _turned(expr.named_args) if turned else expr.named_args

    def known_attributes(self) -> Iterable[str] | None:
        """Names that `attributes` may have; None for what is not known."""
        if self.kind == "op":
            return _op_attributes(self.name)
        if self.kind == "module":
            return _attributes_of_class(self.name)
        if self.kind == "method":
            return _parameters(getattr(Tensor, self.name))
        record = public_functions.get(self.name)
        function = wrapped_functions.get(self.name) if record is None else record.function
        return None if function is None else _parameters(function)


@dataclass(frozen=True, slots=True, eq=False)
class Operator(Target):
    """An operator of tensors in any spelling: `x + y`, `x += y`, `F.add(x, y)`, the op "add"."""

    parameters: tuple[str, ...]
    spelt: Mapping[Key, bool]  # what is called -> whether its operands come the other way round

    def matches(self, expr: Expr) -> bool:
        """True for the operator."""
        return key_of(expr) in self.spelt

    def keys(self) -> set[Key] | None:
        """Its spellings."""
        return set(self.spelt)

    def operands(self, expr: Expr) -> tuple[Any, ...] | None:
        """Operands as they are written."""
        given = tuple(expr.named_args.values()) if isinstance(expr, Call) else expr.inputs
        given = given[: len(self.parameters)]
        return tuple(reversed(given)) if self.spelt[key_of(expr)] else tuple(given)

    def attributes(self, expr: Any, *, turned: bool = False) -> Mapping[str, Any]:
        """Operands by the names that the function has for them; constants stand for their values."""
        operands = [_number(v) for v in self.operands(expr) or ()]
        named = dict(zip(self.parameters, operands[::-1] if turned else operands, strict=False))
        return {**named, **expr.attrs} if isinstance(expr, Apply) else named

    def known_attributes(self) -> Iterable[str] | None:
        """Names of the operands, and attributes of the op."""
        ops = [name for kind, name in self.spelt if kind == "op"]
        return [*self.parameters, *(name for op in ops for name in _op_attributes(op))]


def _turned(named: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments with the values of the first two exchanged."""
    (first, a), (second, b), *others = [*named.items(), *[("", None)] * 2]
    return {first: b, second: a, **dict(others)}


def _number(value: Any) -> Any:
    """The value of a constant; other values as they are."""
    return value.expr.value.numpy() if isinstance(value, Node) and isinstance(value.expr, Constant) else value


# ---------------------------------------------------------------- names of what is called


def target_of(callee: Any) -> Target:
    """What `callee` names: an op, an operator, `.name` of a tensor method, a public function, a class of modules."""
    if isinstance(callee, str):
        return _named(callee)
    if isinstance(callee, type) and issubclass(callee, Module):
        return Target("module", callee)
    if callable(callee):
        name = qualified_name(callee)
        return _operators().get(name) or Target("function", name)
    raise GraphError(f"pattern: {callee!r} cannot be called; expected an op's name, '.method', a function or a class")


def _named(name: str) -> Target:
    if name.startswith("."):
        methods = [f".{name}" for name in dir(Tensor) if callable(getattr(Tensor, name))]
        if name not in methods:
            raise GraphError(f"pattern: tensors have no method {name!r}{nearest(name, methods)}")
        return Target("method", name[1:])
    found = _operators().get(name) or _printed_functions().get(name)
    if found is not None:
        return found
    if name not in registry:
        raise GraphError(f"pattern: unknown op {name!r}{nearest(name, registry)}; methods are written '.name'")
    return Target("op", name)


@functools.cache
def _printed_functions() -> dict[str, Target]:
    """Functions by the names under which graphs print them: "nn.conv2d"."""
    return {
        f"{r.home.rpartition('.')[2]}.{r.name}": _operators().get(q) or Target("function", q)
        for q, r in public_functions.items()
    }


@functools.cache
def _operators() -> dict[str, Operator]:
    """Operators by every name that they have: sign, method, function, op."""
    bases: dict[str, list[PublicFunction]] = {}
    for record in public_functions.values():
        for base in {method.strip("_") for method in record.methods if method.startswith("__")}:
            bases.setdefault(base, []).append(record)
    signs = {**BINARY, **COMPARED, "invert": "~"}  # not the minus and plus of one operand, which share their signs
    found: dict[str, Operator] = {}
    for base in bases:
        if f"r{base}" in bases or base in signs or base in registry:
            operator = _operator(base, bases)
            names = [signs.get(base, base), *(name for kind, name in operator.spelt)]
            found.update(dict.fromkeys(names, operator))
    return found


def _operator(base: str, bases: Mapping[str, list[PublicFunction]]) -> Operator:
    records = [*bases[base], *(r for r in public_functions.values() if r.name == base)]
    spelt: dict[Key, bool] = {("method", f"__{base}__"): False}
    for form, turned in ((f"i{base}", False), (f"r{base}", True)):
        if form in bases:
            spelt["method", f"__{form}__"] = turned
    for record in records:
        spelt["function", record.qualified] = False
    spelt.update({("op", name): False for name in (base, *(r.name for r in records)) if name in registry})
    return Operator("operator", base, tuple(records[0].signature.parameters), spelt)


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


def _parameters(function: Any) -> tuple[str, ...] | None:
    """Names of a function's parameters; None where any name will do."""
    found = signature_of(function).parameters
    return None if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in found.values()) else tuple(found)


def _attributes_of_class(kind: type) -> set[str] | None:
    """Attributes that a class of modules, or one derived from it, has; None where that is not known.

    A derived class that computes names has to be asked for by its own name.
    """
    found: set[str] = set()
    todo = [kind]
    while todo:
        at = todo.pop()
        todo += at.__subclasses__()
        for base in at.__mro__[:-1]:
            own = {name: inspect.unwrap(v) if callable(v) else v for name, v in vars(base).items()}
            functions = [v for v in own.values() if isinstance(v, FunctionType)]
            if at is kind and base is not Module and any(map(_sets_freely, functions)):
                return None
            found.update(*map(_stored, functions), own.get("__annotations__", ()))
            found |= {name for name, v in own.items() if not callable(v)}
    return {name for name in found if not name.startswith("__")}


def _sets_freely(function: FunctionType) -> bool:
    """True if names of attributes may be computed in a method."""
    return not {"setattr", "__dict__", "__setattr__", "vars"}.isdisjoint(function.__code__.co_names)


@functools.lru_cache(maxsize=4096)
def _stored(function: FunctionType) -> frozenset[str]:
    """Names of the attributes that a function sets."""
    return frozenset(i.argval for i in dis.get_instructions(function) if i.opname == "STORE_ATTR")


class _ModuleAttributes(Mapping):
    """Attributes of a module: its own, and those of its class."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._own = object.__getattribute__(module, "__dict__")

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        found = inspect.getattr_static(type(self._module), name, None)
        if found is None or isinstance(found, Callable):
            raise KeyError(name)
        return getattr(self._module, name)

    def __iter__(self) -> Any:
        return iter(self._own)

    def __len__(self) -> int:
        return len(self._own)


# ---------------------------------------------------------------- values


def fits(name: str, value: Any, wanted: Any, rank: int) -> bool:
    """True if an attribute of a call has a value, or one that a predicate accepts.

    Values are compared as the op reads them: `2` is `(2, 2)`, an axis counts from either end of the `rank` axes of the
    call, and a dtype may be written in any way. Of tensors True and False ask whether there is one.
    """
    if callable(wanted) and not isinstance(wanted, (type, Tensor)):
        return bool(wanted(value))
    if name == "dtype" or isinstance(wanted, (type, np.dtype)):
        return _same_dtype(value, wanted)
    if isinstance(wanted, bool) and (value is None or isinstance(value, Tensor)):
        return (value is not None) == wanted
    if "ax" in name or name == "perm":
        return _same(_from_the_front(value, rank), _from_the_front(wanted, rank))
    return _same(value, wanted)


def _same_dtype(value: Any, wanted: Any) -> bool:
    try:
        return as_dtype(value) == as_dtype(wanted)
    except (MegEngineError, TypeError, ValueError):
        return value == wanted


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
