"""Calls of the command line, such as `F.relu(_) * 0.5`, as expressions of a graph; they never run as Python."""

import ast
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.errors import MegEngineError, OptionError, nearest
from megengine.dispatch import get_op
from megengine.dispatch.public import public_functions, watched_function
from megengine.module import Module
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, TensorNode
from megengine.traced_module.operators import STEMS, op_of

SIGNS: dict[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**"}
OPERATORS: dict[type, tuple[Callable[[Any, Any], Any], str]] = {  # of calls, and the op that does the same
    kind: (getattr(operator, STEMS[sign]), op_of(sign)) for kind, sign in SIGNS.items()
}
HOME = "megengine.functional"
SCALARS = (bool, int, float, str, type(None))
NUMBERS = (int, float)
LONGEST_NUMBER = 64  # bits of an integer
Find = Callable[[str], TensorNode]


def node_of(graph: InternalGraph, text: str, node: TensorNode, find: Find) -> TensorNode:
    """The node of a text: the name of one, or calls of functions, methods and operators on nodes and constants.

    In `text`, `_` stands for `node`: `F.relu(_)`, `_.reshape(1, -1) * 2`, `self.extra(_)`; in graphs of ops, `relu(_)`.
    `find` returns the node of a name. Raises OptionError if the text is of another form or its function does not exist,
    and MegEngineError if the call is impossible; the graph is unchanged then.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of escapes in a text
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise OptionError(f"{text!r} is not a call; write for example F.relu(_), where _ is the node") from None
    reader = (_Ops if graph.arguments is None else _Calls)(graph, node, find)
    try:
        result = reader.read(tree)
    except (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RecursionError) as error:
        if isinstance(error, MegEngineError):
            raise
        raise OptionError(f"{text!r}: {error}") from error
    if not isinstance(result, TensorNode):
        raise OptionError(f"{text!r} gives {type(result).__name__}; expected one tensor")
    return result


class _Reader:
    """The part that both levels share: constants, names, nesting."""

    negative: Callable[[Any], Any]  # minus a node
    binary: Callable[[Callable[[Any, Any], Any], str, Any, Any], Any]  # an operator on one node or two
    call: Callable[[ast.AST, list[Any], dict[str, Any]], Any]

    def __init__(self, graph: InternalGraph, node: TensorNode, find: Find) -> None:
        self.graph, self.node, self.find = graph, node, find

    def read(self, tree: ast.AST) -> Any:
        """A node or a constant."""
        match tree:
            case ast.Constant(value=value) if type(value) in SCALARS:
                return value
            case ast.Name(id=name):
                return self.node if name == "_" else self.find(name)
            case ast.Tuple(elts=items):
                return tuple(map(self.read, items))
            case ast.List(elts=items):
                return list(map(self.read, items))
            case ast.UnaryOp(op=ast.USub(), operand=value):
                read = self.read(value)
                return self.negative(read) if isinstance(read, TensorNode) else -_number(read)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                one, other = self.read(left), self.read(right)
                if isinstance(one, TensorNode) or isinstance(other, TensorNode):
                    return self.binary(*OPERATORS[type(op)], one, other)
                return _computed(tree, OPERATORS[type(op)][0], _number(one), _number(other))
            case ast.Call(func=function, args=args, keywords=words) if all(word.arg for word in words):
                values = [self.read(arg) for arg in args]
                return self.call(function, values, {str(word.arg): self.read(word.value) for word in words})
        raise OptionError(f"{ast.unparse(tree)!r} has no place in an edit; expected calls, nodes and constants")


class _Calls(_Reader):
    """At the level of calls, within `insert_exprs`."""

    def negative(self, value: Any) -> Any:  # nodes have operators while expressions are inserted
        return -value

    def binary(self, python: Callable[[Any, Any], Any], op: str, left: Any, right: Any) -> Any:
        return python(left, right)

    def call(self, function: ast.AST, args: list[Any], words: dict[str, Any]) -> Any:
        return self._callable(function)(*args, **words)

    def _callable(self, function: ast.AST) -> Callable[..., Any]:
        """A layer of the module, a public function or a method of tensors; nothing else can be called."""
        path = ast.unparse(function)
        if (parts := _layer_path(function))[0] == "self":
            return self._layer(parts[1:], path)
        known = functions()
        for name in (path, path.removeprefix("F."), path.removeprefix(HOME + ".")):
            if name in known:
                return known[name]
        if isinstance(function, ast.Attribute) and not function.attr.startswith("_"):
            value = function.value
            root = value.id if isinstance(value, ast.Name) else ""
            if not isinstance(value, (ast.Name, ast.Attribute)) or root == "_" or self.graph.names.get(root):
                return self._method(self.read(value), function.attr)
        bare = path.removeprefix(HOME + ".").removeprefix("F.")
        raise OptionError(f"no function {path!r} in {HOME}{nearest(bare, known)}")

    def _method(self, node: Any, name: str) -> Callable[..., Any]:
        if not isinstance(node, TensorNode):
            raise OptionError(f"{node!r} is no tensor; only tensors have methods that an edit can call")
        known = {one for record in public_functions.values() for one in record.methods if not one.startswith("_")}
        if name not in known:
            raise OptionError(f"tensors have no method {name!r}{nearest(name, known)}")
        return lambda *args, **words: node._call(name, *args, **words)

    def _layer(self, parts: list[str], text: str) -> ModuleNode:
        """The submodule at a path; no other attribute is followed. Raises OptionError if there is none."""
        at: Any = self.graph.inputs[0].owner
        for part in parts:
            layers = {name: v for name, v in object.__getattribute__(at, "__dict__").items() if isinstance(v, Module)}
            if part not in layers:
                raise OptionError(f"{text!r} is no layer: there is no submodule {part!r}{nearest(part, layers)}")
            at = layers[part]
        if not parts:
            raise OptionError(f"{text!r} is the whole module; expected self.NAME(_), where NAME is one of its layers")
        return self.graph._inserting.attribute_at(".".join(parts))


class _Ops(_Reader):
    """At the level of ops: numbers become constants of the dtype of the node beside them."""

    def negative(self, value: TensorNode) -> Any:
        return self._apply("neg", [value], {})

    def binary(self, python: Callable[[Any, Any], Any], op: str, left: Any, right: Any) -> Any:
        return self._apply(op, [left, right], {})

    def call(self, function: ast.AST, args: list[Any], words: dict[str, Any]) -> Any:
        return self._apply(ast.unparse(function), args, words)

    def _apply(self, op: str, args: Sequence[Any], attrs: dict[str, Any]) -> Any:
        get_op(op)  # an unknown one gets the nearest name
        nodes = [arg for arg in args if isinstance(arg, TensorNode)]
        if not nodes:
            raise OptionError(f"{op}: expected a node among its arguments")
        last = max(nodes, key=lambda n: n.expr.position)
        after = last.expr
        while (following := after.following) is not None and following.kind == "Input":
            after = following  # inputs come first
        inputs = [arg if isinstance(arg, TensorNode) else self._constant(arg, last, after) for arg in args]
        after = max([after, *(n.expr for n in inputs)], key=lambda e: e.position)
        return self.graph.apply(op, *inputs, attrs=attrs, after=after, meta=dict(last.expr.meta))

    def _constant(self, value: Any, beside: TensorNode, after: Any) -> TensorNode:
        dtype = beside.spec.dtype
        kind = np.dtype(np.float32) if isinstance(dtype, QuantizedDType) else dtype
        return self.graph.constant(np.asarray(value, kind), after=after, meta=dict(beside.expr.meta))


def _number(value: Any) -> Any:
    if type(value) not in NUMBERS:
        raise OptionError(f"{value!r} is no number and no tensor; expected one")
    return value


def _computed(tree: ast.AST, python: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    """A number from two; integers stay in 64 bits. Raises OptionError if there is no such number."""
    whole = isinstance(one, int) and isinstance(other, int)
    try:
        large = python is operator.pow and whole and abs(one) > 1 and other > LONGEST_NUMBER
        result = None if large else python(one, other)
    except ArithmeticError as error:
        raise OptionError(f"{ast.unparse(tree)!r}: {error}") from None
    if type(result) not in NUMBERS or (isinstance(result, int) and result.bit_length() > LONGEST_NUMBER):
        raise OptionError(f"{ast.unparse(tree)!r} is no real number, or an integer of more than {LONGEST_NUMBER} bits")
    return result


def _layer_path(function: ast.AST) -> list[str]:
    """The parts of self.block.conv and of self.blocks[0].conv; an empty text first for any other expression."""
    match function:
        case ast.Name(id=name):
            return [name]
        case ast.Attribute(value=value, attr=name):
            return [*_layer_path(value), name]
        case ast.Subscript(value=value, slice=ast.Constant(value=int() | str() as name)):
            return [*_layer_path(value), str(name)]
    return [""]


def functions() -> dict[str, Callable[..., Any]]:
    """Public functions by the names that `megengine.functional` and its parts give them."""
    by_name = {}
    for record in public_functions.values():
        if record.home.startswith(HOME):
            for name in (record.name, f"{record.home}.{record.name}".removeprefix(HOME + ".")):
                by_name[name] = watched_function(record)
    return by_name
