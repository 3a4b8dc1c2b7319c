"""Forward functions as source: a statement for each expression of a graph."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import Any

from megengine import functional as F
from megengine.core.errors import GraphError, MegEngineError
from megengine.core.pytree import TreeDef, flatten, unflatten
from megengine.core.sizes import OpenRatio, OpenSize, name_of
from megengine.dispatch import opdefs
from megengine.dispatch.public import public_functions
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import (
    SHAPE_OF,
    Apply,
    Call,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    GetAttr,
    Input,
    is_call_function,
    is_call_tensor_method,
)
from megengine.traced_module.ir.functions import function_of, wrapped_functions
from megengine.traced_module.ir.node import ModuleNode, Node
from megengine.traced_module.ir.primitives import is_among
from megengine.traced_module.operators import BINARY, COMPARED, UNARY
from megengine.traced_module.source.arguments import Entry, arguments_of_call, holds_node, varying
from megengine.traced_module.source.layers import home_of, same_value
from megengine.traced_module.source.ops import op_code
from megengine.traced_module.source.parts import ModulePart, Part, Parts, read
from megengine.traced_module.source.sizes import shape_of, size_text
from megengine.traced_module.source.text import (
    INDENT,
    RESERVED,
    WIDTH,
    Code,
    Group,
    Labelled,
    Names,
    called,
    flat,
    literal,
    plain,
    wrapped,
)
from megengine.traced_module.tracing.calls import Static, shape_value


class Imports:
    """The imports of a generated file besides MegEngine, and the names under which they are known."""

    def __init__(self) -> None:
        self.names = Names()
        self.scopes: list[Names] = []  # of parameters, variables and classes, which would hide an import of their name
        self._known: dict[tuple[str, str], str] = {}

    def of(self, module: str, name: str) -> str:
        """The name under which `name` of a module is known. Raises GraphError if it cannot be imported."""
        outer, _, inner = name.partition(".")
        if _found(module, name) is None or module == "__main__" or not all(map(plain, module.split("."))):
            raise GraphError(
                f"{module}.{name} cannot be imported by a generated file; define it at the top level of a module "
                "that can be imported"
            )
        if (module, outer) not in self._known:
            ours = outer in RESERVED and module.startswith("megengine")  # reserved for this import
            self._known[module, outer] = outer if ours else self._free(outer)
        known = self._known[module, outer]
        return f"{known}.{inner}" if inner else known

    def _free(self, wanted: str) -> str:
        name = self.names.give(wanted)
        while any(name in scope.taken for scope in self.scopes):
            name = self.names.give(wanted)
        return name

    def lines(self) -> list[str]:
        of_module: dict[str, list[str]] = {}
        for (module, name), known in sorted(self._known.items()):
            of_module.setdefault(module, []).append(name if known == name else f"{name} as {known}")
        lines = []
        for module, names in of_module.items():
            line = f"from {module} import {', '.join(names)}"
            broken = [f"from {module} import (", *(f"{INDENT}{n}," for n in names), ")"]
            lines += [line] if len(line) <= WIDTH else broken
        return lines

    def function(self, qualified: str) -> str:
        """The text of a public or wrapped function."""
        if qualified == opdefs.COPY:
            return "to"  # the method
        if qualified not in wrapped_functions and qualified in public_functions:
            return _public_name(qualified)
        function = function_of(qualified)
        home, name = function.__module__, function.__qualname__
        written = self.of(home, name)
        if inspect.unwrap(_found(home, name)) is not inspect.unwrap(function):
            raise GraphError(f"{qualified} is not what {home} has under that name; give the function its own name")
        return written

    def kind(self, kind: type) -> str:
        home, name = home_of(kind)
        return f"M.{name}" if home == "megengine.module" else self.of(home, name)


def _found(module: str, name: str) -> Any:
    at: Any = sys.modules.get(module)
    for part in name.split("."):
        at = getattr(at, part, None) if plain(part) else None
    return at


def _public_name(qualified: str) -> str:
    """A public function below `F` if it is exported there, else its full name."""
    home, _, name = qualified.rpartition(".")
    if getattr(getattr(getattr(F, name, None), "__public__", None), "qualified", None) == qualified:
        return f"F.{name}"
    if home == f"megengine.{name}":  # the function hides its module
        return f"mge.{name}"
    prefix = "megengine.functional."
    return f"F.{home[len(prefix) :]}.{name}" if home.startswith(prefix) else f"mge.{home[len('megengine.') :]}.{name}"


class Body:
    """The statements of one graph."""

    def __init__(self, index: int, part: ModulePart, parts: Parts, imports: Imports) -> None:
        self.graph, self.part, self.parts, self.imports = part.graphs[index], part, parts, imports
        graph, entries = self.graph, varying(part.written[index])
        self.names = Names({*imports.names.taken, *(e.name for e in entries)})
        imports.scopes.append(self.names)
        self.codes: dict[int, str] = {}
        self.lengths: dict[str, str] = {}  # variables of open lengths
        self.lines: list[str] = []
        for node in graph.inputs:
            if isinstance(node, ModuleNode):
                self.codes[id(node)] = "self"
        for entry in entries:
            self._name_nodes(entry)
        for expr in graph.exprs(recursive=False):
            try:
                self._statement(expr)
            except MegEngineError as exc:
                exc.add_note(f"in {expr!r} of {graph.qualname}")
                raise
        self._return()

    # ------------------------------------------------------------ values

    def _put(self, code: Code, prefix: str = "") -> None:
        self.lines += wrapped(code, 2, prefix)

    def _return(self) -> None:
        graph = self.graph
        for node in {id(n): n for n in graph.outputs if shape_value(n) is not None}.values():
            # a shape is a tensor here, and a tuple of numbers when no graph is recorded
            name = self.names.give(f"{node.name}_tensor")
            self._put(f"{name} = Tensor({self.codes[id(node)]}, dtype={flat(literal(node.dtype))})")
            self.codes[id(node)] = name
        if graph.out_def is not None and graph.out_def.num_leaves == len(graph.outputs):
            code = self.code(unflatten(graph.out_def, graph.outputs))
        else:
            code = self.code(graph.outputs[0] if len(graph.outputs) == 1 else tuple(graph.outputs))
        if isinstance(code, Group) and not code.head and code.opener == "(" and len(code.items) > 1:
            line = ", ".join(map(flat, code.items))
            code = line if len(line) + len("return ") + 2 * len(INDENT) <= WIDTH else code
        self._put(code, "return ")

    def _used(self, node: Node) -> bool:
        return bool(node.users) or is_among(node, self.graph.outputs)

    def _local(self, node: Node, *, unused: str = "") -> str:
        """A variable for a node; `unused` goes in front of the name of a node without users."""
        name = self.codes[id(node)] = self.names.give(node.name if self._used(node) else unused + node.name)
        return name

    def _name_nodes(self, entry: Entry) -> None:
        """Name a parameter, or the tensors in a nested one."""
        if isinstance(entry.value, Node):
            self.codes[id(entry.value)] = entry.name
            return
        for node, place in places(entry.value, entry.name):
            if isinstance(node, Node) and self._used(node):
                self._put(place, f"{self._local(node)} = ")

    def code(self, value: Any) -> Code:
        """A node, a constant, or containers of them."""
        return literal(value, self._special)

    def _special(self, value: Any) -> Code | None:
        if isinstance(value, Node):
            return self.codes[id(value)]
        if isinstance(value, (OpenSize, OpenRatio)):
            return size_text(value, self._length)
        if id(value) in self.part.constants:
            return f"self.{self.part.constants[id(value)]}"
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return called(self.imports.of(type(value).__module__, type(value).__qualname__), map(self.code, value))
        if isinstance(value, dict) and type(value) is not dict:
            return called(self.imports.of("collections", "OrderedDict"), [self.code(dict(value))])
        return None

    def _length(self, name: str) -> str:
        """A variable for an open length: that of the first value with an axis of this length."""
        for node in () if name in self.lengths else self.graph.nodes(recursive=False):
            axis = next((i for i, n in enumerate(shape_of(node)) if name_of(n) == name), None)
            if axis is not None and id(node) in self.codes:
                self.lengths[name] = self.names.give(name)
                self._put(f"{self.codes[id(node)]}.shape[{axis}]", f"{self.lengths[name]} = ")
                break
        if name not in self.lengths:
            raise GraphError(f"no value before this call has an axis of the open length {name!r}; add one as an input")
        return self.lengths[name]

    # ------------------------------------------------------------ statements

    def _statement(self, expr: Expr) -> None:
        if isinstance(expr, Input):
            return
        if isinstance(expr, Constant):
            self.codes[id(expr.output)] = f"self.{self.part.constants[id(expr.value)]}"
        elif isinstance(expr, GetAttr):
            node = expr.output
            path = tuple(expr.name.split("."))
            at: Any = expr.inputs[0]
            while isinstance(at.expr, GetAttr):
                path, at = (*at.expr.name.split("."), *path), at.expr.inputs[0]
            self.codes[id(node)] = read(self.part, "self", path)
        elif isinstance(expr, CallMethod) and expr.method == "__setitem__":
            target, key, value = expr.args
            # items are written to a copy, or to the value itself if that is a copy without other users
            copied = is_call_function(target.expr, F.copy) or is_call_tensor_method(target.expr, "__setitem__")
            if copied and all(u.position <= expr.position for u in target.users) and target not in self.graph.outputs:
                name = self.codes[id(expr.output)] = self.codes[id(target)]
            else:
                source = flat(self.code(target))
                name = self._local(expr.output)
                self._put(f"{name} = F.copy({source})")
            self._put(self.code(value), f"{name}[{self._index(key)}] = ")
        else:
            self._assign(expr, self._expression(expr))

    def _assign(self, expr: Expr, code: Code) -> None:
        structure: TreeDef | None = getattr(expr, "out_def", None)
        if structure is None and len(expr.outputs) > 1:
            structure = TreeDef(tuple, None, (TreeDef(None),) * len(expr.outputs))
        if structure is None or structure.kind is None:
            self._put(code, f"{self._local(expr.output)} = ")
            return
        if structure.kind in (tuple, list) and all(c.kind is None for c in structure.children):
            several = len(expr.outputs) > 1
            targets = ", ".join(self._local(n, unused="_" if several else "") for n in expr.outputs)
            self._put(code, f"{targets} = " if several else f"({targets},) = ")
            return
        whole = self.names.give(f"{expr.name}_all")
        self._put(code, f"{whole} = ")
        for node, place in places(unflatten(structure, expr.outputs), whole):
            if isinstance(node, Node):
                self._put(place, f"{self._local(node)} = ")

    # ------------------------------------------------------------ expressions

    def _expression(self, expr: Expr) -> Code:
        if isinstance(expr, Apply):
            if expr.op == SHAPE_OF:
                return f"{self.codes[id(expr.inputs[0])]}.shape"
            return op_code(expr, [self.codes[id(n)] for n in expr.inputs], self.code)
        assert isinstance(expr, Call)
        if isinstance(expr, CallFunction) and expr.qualified == opdefs.COPY:
            device = expr.kwargs.get("comp_node") or "xpux"
            return f"{_operand(flat(self.code(expr.args[0])))}.to({literal(device)})"
        if isinstance(expr, CallFunction):
            return called(self.imports.function(expr.qualified), self._arguments(expr))
        assert isinstance(expr, CallMethod)
        if expr.method == "__call__":
            owner, *args = expr.args
            callee = flat(self.code(owner))
            part: Part | None = self.parts.made.get(id(expr.inputs[0].owner))
            if isinstance(part, ModulePart):
                child = part.value.graph_of_call(expr)
                target = part.written[[g is child for g in part.graphs].index(True)]
                signature = part.value.forward_signature
                labelled = arguments_of_call(signature, target, args, expr.kwargs, whole=len(part.graphs) > 1)
                return called(callee, [self._passed(label, value) for label, value in labelled])
            return called(callee, self._arguments(expr, skip=1))
        return self._method(expr)

    def _passed(self, label: str, value: Any) -> Code:
        if label and not plain(label):
            raise GraphError(f"an argument is called {label!r}, which is no name in Python")
        return Labelled(f"{label}=", self.code(value)) if label else self.code(value)

    def _arguments(self, expr: Call, *, skip: int = 0) -> Iterator[Code]:
        """Arguments behind the first `skip` ones, without those equal to their defaults."""
        try:
            labelled = list(written_of(expr.signature, expr.signature.bind(*expr.args, **expr.kwargs).arguments))
        except TypeError:
            labelled = [*(("", v) for v in expr.args), *expr.kwargs.items()]
        return (self._passed(label, value) for label, value in labelled[skip:])

    def _index(self, key: Any) -> str:
        items = key if type(key) is tuple and key else (key,)
        text = ", ".join(map(self._one_index, items))
        return f"{text}," if type(key) is tuple and len(key) == 1 else text

    def _one_index(self, key: Any) -> str:
        if type(key) is not slice:
            return flat(self.code(key))
        start, stop, step = ("" if v is None else flat(self.code(v)) for v in (key.start, key.stop, key.step))
        return f"{start}:{stop}" + (f":{step}" if step else "")

    def _method(self, expr: CallMethod) -> Code:
        target, *args = expr.args
        name = expr.method[2:-2] if expr.method.startswith("__") and expr.method.endswith("__") else ""
        owner = _operand(flat(self.code(target)))
        if name in UNARY and not args:
            return f"{UNARY[name]}{owner}"
        if name == "getitem":
            return f"{owner}[{self._index(args[0])}]"
        symbol, turned = _symbol(name)
        if symbol and len(args) == 1 and not expr.kwargs:
            other = _operand(flat(self.code(args[0])))
            left, right = (other, owner) if turned else (owner, other)
            tight = symbol == "**" and "(" not in left + right
            return f"{left}{symbol}{right}" if tight else f"{left} {symbol} {right}"
        if getattr(getattr(Tensor, expr.method, None), "__public__", None) is None:
            raise GraphError(f"tensors have no method {expr.method!r}")
        return called(f"{owner}.{expr.method}", self._arguments(expr, skip=1))


def _operand(text: str) -> str:
    return f"({text})" if text.startswith("-") else text


def _symbol(name: str) -> tuple[str, bool]:
    """The operator of a method's name, and whether the object stands on its right."""
    if name in COMPARED:
        return COMPARED[name], False
    if name in BINARY:
        return BINARY[name], False
    symbol = BINARY.get(name[1:], "")
    return symbol, bool(symbol) and name[0] == "r"


def written_of(signature: inspect.Signature, arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(name or "", value) of arguments: those equal to their defaults are left out, options have names."""
    parameters = list(signature.parameters.values())
    several = any(p.kind is p.VAR_POSITIONAL and arguments.get(p.name) for p in parameters)
    positional = True
    for parameter in parameters:
        if parameter.name not in arguments:
            positional = positional and parameter.kind is parameter.VAR_POSITIONAL
            continue
        value = arguments[parameter.name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            yield from (("", v) for v in value)
        elif parameter.kind is parameter.VAR_KEYWORD:
            yield from value.items()
        elif parameter.kind is parameter.POSITIONAL_ONLY or (several and parameter.kind is not parameter.KEYWORD_ONLY):
            yield "", value
        elif parameter.default is not parameter.empty and same_value(value, parameter.default):
            positional = False
        else:
            first = parameter.default is parameter.empty or holds_node(value)
            by_place = positional and parameter.kind is parameter.POSITIONAL_OR_KEYWORD and first
            positional = by_place
            yield "" if by_place else parameter.name, value


def places(value: Any, source: str) -> Iterator[tuple[Any, str]]:
    """(leaf, text that reads it) of a nested value with the text `source`. Raises GraphError for other containers."""
    if isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from places(item, f"{source}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, f"{source}[{flat(literal(key))}]")
    elif type(value) is slice:
        for name in ("start", "stop", "step"):
            yield from places(getattr(value, name), f"{source}.{name}")
    elif flatten(value)[1].kind not in (None, Static):
        raise GraphError(f"a {type(value).__qualname__} among the values of a call cannot be written as Python source")
    else:
        yield value, source
