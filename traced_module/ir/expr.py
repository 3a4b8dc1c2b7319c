"""Expressions: how the values of a graph are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from megengine.core.errors import GraphError
from megengine.core.pytree import TreeDef, unflatten
from megengine.core.sizes import closed
from megengine.core.text import counted, one_line
from megengine.dispatch import Op, get_op, opdefs
from megengine.tensor import Tensor
from megengine.traced_module.ir.fixed import fixed, listed, refuse_setting
from megengine.traced_module.ir.functions import (
    Arguments,
    forward_signature,
    function_of,
    method_signature,
    qualified_name,
    signature_of,
    unflatten_arguments,
)
from megengine.traced_module.ir.methods import methods
from megengine.traced_module.ir.written import formatted, written

Callee = tuple[str, Any]  # "op", "function", "method" or "module", and its name
SHAPE_OF = "GetVarShape"  # the op that gives a shape

_EXCHANGE = "replace_inputs, or graph.replace_node"
_RESULTS = "graph.replace_node, which lets users of a result use another value"
_ARGUMENTS = "set_arg or set_args_kwargs"
_PLACE = "insert_exprs and graph.erase"
_ANOTHER = "insert_exprs to make another expression, and graph.replace_node"


class Expr:
    """One computation. `inputs` and `outputs` are lists; they change through the graph only."""

    __slots__ = (
        *("_disable_remove", "_from_shapes", "_graph", "_id", "_inputs", "_inputs_shown", "_key", "_next"),
        *("_outputs", "_outputs_shown", "_prev", "meta"),
    )
    kind = "Expr"
    arg_def: Any = None  # of a call: see Call
    out_def: Any = None
    const_val: Any = None
    _own: tuple[str, ...] = ()  # what an expression of this kind holds beside its inputs and outputs

    def __init__(self, graph: Any, ident: int, meta: dict[str, Any]) -> None:
        self._graph = graph
        self._id = ident
        self._inputs: tuple[Any, ...] = ()
        self._outputs: tuple[Any, ...] = ()
        self._prev: Expr | None = None
        self._next: Expr | None = None
        self._key = 0
        self._disable_remove = False
        self._from_shapes = False  # shapes of other values, and nothing else, say what it gives; kept by the graph
        self._inputs_shown = self._outputs_shown = None
        self.meta = meta

    id = fixed("_id", int, "Number of the expression, unique in its graph and in the graphs of its submodules.")

    top_graph: Any = fixed("_graph", object, "The graph that the expression stands in.")

    graph: Any = fixed(
        "_graph", object, "The graph that it stands in; a call of a module has that which it enters.", _PLACE
    )

    @property
    def callee(self) -> Callee:
        """What it calls: ("op", "relu"), ("method", "reshape"), ("module", None); ("", None) for nothing."""
        return "", None

    @property
    def in_graph(self) -> bool:
        """True while the expression stands in its graph; False once it was taken out, or before it was put in."""
        return bool(self._outputs) and self._graph._names.get(self._outputs[0]._name) is self._outputs[0]

    following: Any = fixed("_next", object, "The expression behind it.")

    previous: Any = fixed("_prev", object, "The expression in front of it.")

    kept = fixed("_disable_remove", bool, "True if it stays where nothing uses it.", "disable_remove")

    from_shapes = fixed("_from_shapes", bool, "True if shapes of other values, and nothing else, say what it gives.")

    position = fixed("_key", int, "A number that rises in the order of the graph.")

    def comes_before(self, other: Expr) -> bool:
        """True if the expression stands in front of another one of its graph."""
        return self._key < other._key

    inputs = listed("_inputs", list[Any], "Nodes used, in order.", _EXCHANGE, lambda e, n: methods.set_inputs(e, n))

    outputs = listed("_outputs", list[Any], "Nodes made, in order.", _RESULTS)

    @property
    def output(self) -> Any:
        """The only node made. Raises GraphError when there are several."""
        if len(self._outputs) != 1:
            raise GraphError(f"{self!r} makes {counted(len(self._outputs), 'value')}; expected one; use .outputs")
        return self._outputs[0]

    @property
    def name(self) -> str:
        """Name of the first node made."""
        return self._outputs[0].name if self._outputs else f"<{self.kind} {self._id}>"

    def interpret(self, *inputs: Any) -> Sequence[Any]:
        """The results of this expression alone, from values (tensors and modules) in place of its inputs.

        Raises GraphError for another number of values than it has inputs.
        """
        if len(inputs) != len(self._inputs):
            wanted = counted(len(self._inputs), "value")
            raise GraphError(f"interpret: {self!r} takes {wanted}, for {self._inputs}; got {len(inputs)}")
        return methods.run(self, inputs)

    def disable_remove(self) -> None:
        """Keep the expression when unused ones are removed."""
        self._disable_remove = True

    def enable_remove(self) -> None:
        """Let the expression be removed when it is unused."""
        self._disable_remove = False

    def replace_inputs(self, repl_dict: Mapping[Any, Any]) -> None:
        """Use other nodes in place of some inputs; the mapping is not changed. Raises as `graph.replace_node`."""
        for old in repl_dict:
            if not any(old is n for n in self._inputs):
                used = ", ".join(n.name for n in self._inputs) or "nothing"
                raise GraphError(f"replace_inputs: {self!r} does not use {old!r}; it uses {used}")
        replacements: dict[int, Any] = {id(old): new for old, new in repl_dict.items()}
        methods.set_inputs(self, tuple(replacements.get(id(n), n) for n in self._inputs))

    def _copy(self, graph: Any) -> Expr:
        """The expression without inputs and outputs, for another graph; what it holds of its own is never changed."""
        new = object.__new__(type(self))
        new._graph = graph  # one by one: tuples take longer
        new._id = self._id
        new._key = 0
        new._inputs = new._outputs = ()
        new._inputs_shown = new._outputs_shown = new._prev = new._next = None
        new._disable_remove = self._disable_remove
        new._from_shapes = False
        new.meta = self.meta.copy()
        for name in self._own:
            setattr(new, name, getattr(self, name))
        return new

    def described(self) -> str:
        """What it computes, as graphs print it."""
        raise NotImplementedError

    def _made(self) -> str:
        names = ", ".join(map(written, self._outputs))
        return names if len(self._outputs) == 1 else f"({names})"

    def __format__(self, spec: str) -> str:
        return formatted(self, spec)

    def __repr__(self) -> str:
        return one_line(f"%{self._id}:\t{self._made()} = {self.described()}")


class Input(Expr):
    """An input of the graph."""

    __slots__ = ()
    kind = "Input"

    def described(self) -> str:
        node = self._outputs[0]
        return f"Input({node.spec})" if hasattr(node, "spec") else "Input()"


class Constant(Expr):
    """A value known when the graph is built: a weight, a table."""

    __slots__ = _own = ("_value",)
    kind = "Constant"

    def __init__(self, graph: Any, ident: int, meta: dict[str, Any], value: Tensor) -> None:
        super().__init__(graph, ident, meta)
        self._value = value

    value = fixed("_value", Tensor, "The value.", "graph.constant and graph.replace_node")

    def described(self) -> str:
        return "Constant() -> (Tensor)"


class GetAttr(Expr):
    """An attribute of a module: a submodule or a tensor; `name` is its path ("branches.0", "conv.weight")."""

    __slots__ = _own = ("_path",)
    kind = "GetAttr"

    def __init__(self, graph: Any, ident: int, meta: dict[str, Any], path: str) -> None:
        super().__init__(graph, ident, meta)
        self._path = path

    @property
    def name(self) -> str:
        """Path of the attribute below the module that is read."""
        return self._path

    def described(self) -> str:
        node = self._outputs[0]
        kind = "Tensor" if hasattr(node, "spec") else node._class_name
        return f'getattr({written(self._inputs[0])}, "{self._path}") -> ({kind})'


class Call(Expr):
    """A call with arguments: nodes and constants nested in any way.

    `arg_def` describes the nesting of (args, kwargs); its leaves are the inputs with each constant of `const_val`
    inserted at its index. `out_def` describes the nesting of the results.
    """

    __slots__ = _own = ("_arg_def", "_const_val", "_out_def")

    def __init__(self, graph: Any, ident: int, meta: dict[str, Any], arguments: Arguments) -> None:
        super().__init__(graph, ident, meta)
        self._arg_def, self._const_val = arguments
        self._out_def: TreeDef | None = None

    arg_def = fixed("_arg_def", TreeDef, "Nesting of the arguments.", _ARGUMENTS)

    out_def: TreeDef | None = fixed("_out_def", TreeDef, "Nesting of the results.", _RESULTS)

    @property
    def const_val(self) -> list[tuple[int, Any]]:
        """Constants among the arguments: (index of the leaf, value)."""
        return list(self._const_val)

    @property
    def args(self) -> tuple[Any, ...]:
        """Positional arguments; nodes stand for their values."""
        return self.unflatten_args(self._inputs)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments; nodes stand for their values."""
        return self.unflatten_args(self._inputs)[1]

    @property
    def return_val(self) -> Any:
        """The results as the call gives them; nodes stand for their values."""
        return self._outputs[0] if self._out_def is None else unflatten(self._out_def, self._outputs)

    @property
    def named_args(self) -> dict[str, Any]:
        """Arguments by the names of their parameters; nodes stand for their values."""
        return dict(self.signature.bind(*self.args, **self.kwargs).arguments)

    @property
    def signature(self) -> inspect.Signature:
        """Signature of what is called; the object of a method is its first parameter."""
        raise NotImplementedError

    def unflatten_args(self, inputs: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with these values in place of the inputs."""
        return unflatten_arguments(self.arguments, inputs)

    def set_args_kwargs(self, *args: Any, **kwargs: Any) -> None:
        """Call with other arguments (nodes of the graph, and constants), nested in any way."""
        methods.set_arguments(self, args, kwargs)

    def set_arg(self, name: str | int, val: Any) -> None:
        """Replace one argument: that of a parameter's name, or of a place among those given by position.

        Places count from 0; of calls of modules and methods from the first behind the module or tensor. Of a module
        that has a graph, the name of an input of that graph does too.
        """
        methods.set_arg(self, name, val)

    @property
    def arguments(self) -> Arguments:
        return self._arg_def, self._const_val

    def _written(self, args: Sequence[Any]) -> str:
        """Arguments as text: positional ones, then `name=value`."""
        return f"{', '.join(map(_text, args))}, {', '.join(f'{k}={_text(v)}' for k, v in sorted(self.kwargs.items()))}"

    def _made(self) -> str:
        value = self.return_val
        return _text(value) if self._outputs else "_"


def _text(value: Any) -> str:
    """Values as MegEngine prints them: strings, numbers and arrays bare, containers as Python writes them."""
    if isinstance(value, (np.generic, np.ndarray)):
        return str(value)
    if isinstance(value, (tuple, list)):
        with np.printoptions(legacy="1.25"):  # (2,) and not (np.int64(2),)
            return repr(value)
    return value if isinstance(value, str) else repr(value) if not isinstance(value, type) else value.__name__


class CallMethod(Call):
    """A call of a module (`method` is "__call__") or of a method of a tensor; the object is the first input."""

    __slots__ = ("_method",)
    _own = (*Call._own, "_method")
    kind = "CallMethod"

    def __init__(self, graph: Any, ident: int, meta: dict[str, Any], arguments: Arguments, method: str) -> None:
        super().__init__(graph, ident, meta, arguments)
        self._method = method

    method = fixed("_method", str, "Name of the method.", _ANOTHER)

    @property
    def callee(self) -> Callee:
        return ("module", None) if self._method == "__call__" else ("method", self._method)

    @property
    def signature(self) -> inspect.Signature:
        """Signature of the method; of a module, of its forward."""
        if self._method == "__call__":
            return forward_signature(self._inputs[0].owner, with_self=True)
        return method_signature(self._method)

    @property
    def graph(self) -> Any:
        """The graph that a call of a traced submodule enters; None for a call of a layer or of a tensor's method."""
        module = self._inputs[0].owner if self._method == "__call__" else None
        enter = getattr(type(module), "graph_of_call", None)
        return None if enter is None else enter(module, self)

    def described(self) -> str:
        target, *args = self.args
        callee = _text(target) if self._method == "__call__" else f"{_text(target)}.{self._method}"
        return f"{callee}({self._written(args)})"


class CallFunction(Call):
    """A call of a public or wrapped function."""

    __slots__ = ("_func",)
    _own = (*Call._own, "_func")
    kind = "CallFunction"

    def __init__(self, graph: Any, ident: int, meta: dict[str, Any], arguments: Arguments, func: str) -> None:
        super().__init__(graph, ident, meta, arguments)
        self._func = func

    qualified = fixed("_func", str, "Module and name of the function, as files store it.")

    @property
    def callee(self) -> Callee:
        return "function", self._func

    @property
    def func(self) -> Callable[..., Any]:
        return function_of(self._func)

    @property
    def signature(self) -> inspect.Signature:
        return signature_of(self.func)

    def described(self) -> str:
        home, _, name = self._func.rpartition(".")
        return f"{home.rpartition('.')[2]}.{name}({self._written(self.args)})"


class Apply(Expr):
    """One op applied to values."""

    _own = ("_attrs", "_op")
    __slots__ = (*_own, "_checked")
    kind = "Apply"

    def __init__(self, graph: Any, ident: int, meta: dict[str, Any], op: str, attrs: Mapping[str, Any]) -> None:
        super().__init__(graph, ident, meta)
        self._op = op
        self._attrs = MappingProxyType(dict(attrs))
        self._checked: tuple[Any, ...] = ()  # what its results were found to follow from (lint)

    def _copy(self, graph: Any) -> Apply:
        new = super()._copy(graph)
        assert isinstance(new, Apply)
        new._checked = self._checked
        return new

    op = fixed("_op", str, "Name of the op.", _ANOTHER)

    opdef = op

    @property
    def record(self) -> Op:
        """The record of the op. Raises OptionError for an op that is not defined."""
        return get_op(self._op)

    @property
    def attrs_at_example(self) -> dict[str, Any]:
        """The attributes with open sizes as they are at the example."""
        return closed(dict(self._attrs))

    @property
    def macs(self) -> int:
        """Multiply-accumulates, at the example where sizes are open."""
        specs = [n.spec.example for n in self._inputs]
        return self.record.macs(specs, self._outputs[0].spec.example, self.attrs_at_example)

    @property
    def callee(self) -> Callee:
        return "op", self._op

    attrs = fixed(
        "_attrs", Mapping[str, Any], "Attributes of the op: a read-only mapping.", "editing.rewiring.set_attrs"
    )

    def set_arg(self, name: str, val: Any) -> None:
        """Give the op another value of an attribute; shapes behind it are inferred again."""
        methods.set_arg(self, name, val)

    def described(self) -> str:
        parts = [written(n) for n in self._inputs] + [f"{k}={v}" for k, v in self._attrs.items()]
        return f"{self._op}({', '.join(parts)})"


def is_call_module(expr: Expr, module_cls: type | None = None) -> bool:
    """True for the call of a module (of that class)."""
    if not isinstance(expr, CallMethod) or expr.method != "__call__":
        return False
    return module_cls is None or issubclass(expr.inputs[0].module_type, module_cls)


def is_call_tensor_method(expr: Expr, method: str | Iterable[str] | None = None) -> bool:
    """True for the call of a method of a tensor (one of those names)."""
    if not isinstance(expr, CallMethod) or expr.method == "__call__":
        return False
    return method is None or expr.method in ((method,) if isinstance(method, str) else tuple(method))


def is_call_function(expr: Expr, func: Callable[..., Any] | Iterable[Callable[..., Any]] | None = None) -> bool:
    """True for the call of a function (one of those)."""
    if not isinstance(expr, CallFunction):
        return False
    if func is None:
        return True
    wanted = (func,) if callable(func) else tuple(func)
    return expr.qualified in map(qualified_name, wanted)


def is_apply_def(expr: Expr, opdef: str | None = None) -> bool:
    """True for an applied op (of that name); ops of MegEngine's that a program applied are calls of their functions."""
    if isinstance(expr, CallFunction) and expr.qualified.startswith(opdefs.PREFIX):
        return opdef in (None, opdefs.class_name(expr.qualified))
    return isinstance(expr, Apply) and opdef in (None, expr.op)


def is_constant(expr: Expr) -> bool:
    """True for a constant."""
    return isinstance(expr, Constant)


def is_getattr(expr: Expr) -> bool:
    """True for the read of an attribute."""
    return isinstance(expr, GetAttr)


def is_input(expr: Expr) -> bool:
    """True for an input of the graph."""
    return isinstance(expr, Input)


refuse_setting(Expr, {"output": _RESULTS, "name": "graph.rename on its node"})
refuse_setting(Expr, {"in_graph": _PLACE, "top_graph": _PLACE})
refuse_setting(Call, dict.fromkeys(("args", "kwargs", "named_args", "const_val", "arguments"), _ARGUMENTS))
refuse_setting(Call, {"return_val": _RESULTS})
refuse_setting(GetAttr, {"name": "graph.replace_module"})
refuse_setting(CallFunction, {"func": _ANOTHER})
