"""Other operands, arguments and attributes of expressions that stand."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from megengine.core.errors import ArgumentError, GraphError, OptionError, ShapeError, nearest
from megengine.core.sizes import as_examples
from megengine.core.text import counted
from megengine.tensor import Tensor
from megengine.traced_module.editing.checking import (
    check_before,
    check_expr,
    check_kept,
    check_kinds,
    check_owned,
    specs_of,
)
from megengine.traced_module.editing.inferring import infer_again, result_specs, tells_shapes
from megengine.traced_module.ir.expr import Apply, Call, CallMethod, Expr, is_call_module
from megengine.traced_module.ir.functions import Arguments, flatten_arguments, normalized
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import ModuleNode, Node, TensorNode
from megengine.traced_module.ir.primitives import (
    IN_ANOTHER,
    assign,
    drop_former_input,
    exchange,
    exchange_outputs,
    is_among,
    use_nodes,
)
from megengine.traced_module.ir.queries import child_graph


def replace_node(graph: InternalGraph, repl_dict: Mapping[Any, Any]) -> None:
    if not isinstance(repl_dict, Mapping):
        raise GraphError(f"replace_node: got a {type(repl_dict).__name__}; expected a dict {{old node: new node}}")
    latest = graph.assignments.latest
    pairs = {latest(old): latest(new) for old, new in repl_dict.items()}
    for old, new in pairs.items():
        check_owned(graph, "replace_node", (old, new))
        check_kinds("replace_node", [old], [new])
    results = result_specs(graph)
    with graph.journal.transaction("replace_node"):
        for old, new in pairs.items():
            _replace_one(graph, old, new)
        changed = [new for old, new in pairs.items() if _may_change_shapes(old, new)]
        infer_again(graph, [u for new in changed for u in new.users], results)


def _replace_one(graph: InternalGraph, old: Node, new: Node) -> None:
    if old is new:
        return
    users = [u for u in old.users if u.position > new.expr.position]
    if old.users and not users and not is_among(old, graph.outputs):
        needed = {id(e) for e in _between(old, new)}
        early = next((u for u in old.users if id(u) not in needed), None)
        raise GraphError(
            f"replace_node: nothing is left that could use {new.name!r} for {old.name!r}; "
            + (
                f"every user of {old.name!r} is needed to make {new.name!r}"
                if early is None
                else f"{early!r} uses {old.name!r} before {new.name!r} is made; "
                f"insert what makes {new.name!r} right behind {old.name!r}"
            )
        )
    for user in users:
        exchange(graph, user, old, new)
    exchange_outputs(graph, old, new)
    drop_former_input(graph, old)


def _between(old: Node, new: Node) -> list[Expr]:
    """Expressions behind the one that makes `old` on which `new` depends."""
    between: dict[int, Expr] = {}
    todo = [new.expr]
    while todo:
        expr = todo.pop()
        if id(expr) not in between and expr.position > old.expr.position:
            between[id(expr)] = expr
            todo.extend(n.expr for n in expr.inputs)
    return list(between.values())


def _may_change_shapes(old: Any, new: Any) -> bool:
    """True if what uses `new` in place of `old` may have results of other shapes."""
    return isinstance(old, ModuleNode) or old.spec != new.spec or tells_shapes(old) or tells_shapes(new)


def replace_all_uses(graph: InternalGraph, old: TensorNode, new: TensorNode, *, except_: Iterable[Expr] = ()) -> None:
    """Let every user of `old` (and the graph's outputs) use `new`, of equal spec except in a transaction.

    Open sizes may follow by another formula that gives the same at the example.
    """
    check_owned(graph, "replace_all_uses", (old, new))
    with as_examples():
        fits = old.spec == new.spec
    if not fits and not graph.journal.deferring:
        raise ShapeError(f"replace_all_uses: {old.name!r} is {old.spec}, {new.name!r} is {new.spec}; expected equal")
    skipped = {id(e) for e in (*except_, new.expr)}
    users = [u for u in old.users if id(u) not in skipped]
    for u in users:
        if u.position < new.expr.position:
            raise GraphError(f"replace_all_uses: {u.name!r} uses {old.name!r} before {new.name!r} is made")
    with graph.journal.transaction("replace_all_uses"):
        for u in users:
            exchange(graph, u, old, new)
        exchange_outputs(graph, old, new)
        if old.spec != new.spec or tells_shapes(old) or tells_shapes(new):
            infer_again(graph, users)


def set_input(graph: InternalGraph, expr: Expr, index: int, node: Node) -> None:
    """Make `expr` use another value; shapes and dtypes of its results must stay, except in a transaction."""
    check_expr(graph, "set_input", expr)
    check_owned(graph, "set_input", [node])
    if not 0 <= index < len(expr.inputs):
        raise GraphError(f"set_input: {expr!r} has {counted(len(expr.inputs), 'input')}, so none of number {index}")
    new = (*expr.inputs[:index], node, *expr.inputs[index + 1 :])
    check_kinds("set_input", expr.inputs, new)
    check_before("set_input", [node], expr)
    check_kept(expr, new)
    before = expr.inputs[index]
    with graph.journal.transaction("set_input"):
        use_nodes(graph, expr, new)
        if graph.journal.deferring or any(map(tells_shapes, (node, before, *expr.outputs))):
            infer_again(graph, [expr])


def set_inputs(expr: Expr, inputs: Sequence[Node]) -> None:
    """Let an expression use other nodes, in the same places; an op may get more. Raises as `replace_node`."""
    graph = expr.top_graph
    check_expr(graph, "set_inputs", expr)
    check_owned(graph, "set_inputs", inputs)
    if len(inputs) < len(expr.inputs) or (len(inputs) > len(expr.inputs) and not isinstance(expr, Apply)):
        raise GraphError(f"set_inputs: {expr!r} has {counted(len(expr.inputs), 'input')}, got {len(inputs)}")
    check_kinds("set_inputs", expr.inputs, inputs[: len(expr.inputs)])
    check_before("set_inputs", inputs, expr)
    with graph.journal.transaction("set_inputs"):
        use_nodes(graph, expr, inputs)
        infer_again(graph, [expr])


def set_attrs(graph: InternalGraph, expr: Apply, attrs: Mapping[str, Any]) -> None:
    """Change attributes of an applied op; its results keep shapes and dtypes, except in a transaction."""
    check_expr(graph, "set_attrs", expr, Apply)
    new = {**expr.attrs, **attrs}
    with _in_present_form(expr, attrs):
        check_kept(expr, expr.inputs, new)
    with graph.journal.transaction("set_attrs"):
        assign(graph, expr, "_attrs", MappingProxyType(new))
        if graph.journal.deferring:
            infer_again(graph, [expr])


def set_arguments(expr: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Let a call have other arguments: nodes of this graph and constants, nested in any way."""
    graph = expr.top_graph
    check_owned(graph, "set_args_kwargs", [expr.outputs[0]])
    signature = expr.signature
    try:
        args, kwargs = normalized(signature, args, kwargs)
    except TypeError as error:
        raise ArgumentError(f"set_args_kwargs: {expr!r}: {error}; expected {signature}") from None
    inputs, arguments = flatten_arguments(args, kwargs, lambda v: v if isinstance(v, Node) else None)
    if is_call_module(expr) and (not inputs or inputs[0] is not expr.inputs[0]):
        raise GraphError(f"set_args_kwargs: the first argument of {expr!r} is the module; it stays: {expr.inputs[0]!r}")
    if any(isinstance(v, Tensor) for _, v in arguments[1]):
        raise GraphError("set_args_kwargs: a tensor among the arguments; make it a node with graph.constant first")
    check_owned(graph, "set_args_kwargs", inputs)
    check_before("set_args_kwargs", inputs, expr)
    with graph.journal.transaction("set_arguments"):
        set_call(expr, inputs, arguments)
        infer_again(graph, [expr])


def set_call(call: Call, inputs: Sequence[Node], arguments: Arguments) -> None:
    """Let a call have these arguments, which are checked."""
    graph = call.top_graph
    use_nodes(graph, call, inputs, ("arguments", graph, call, inputs, arguments))
    assign(graph, call, "_arg_def", arguments[0], IN_ANOTHER)
    assign(graph, call, "_const_val", arguments[1], IN_ANOTHER)


def set_arg(expr: Call | Apply, name: str | int, value: Any) -> None:
    if isinstance(expr, Apply):
        _set_attribute(expr, name, value)
    else:
        set_arguments(expr, *with_argument(expr, name, expr.top_graph.assignments.latest(value)))


def _set_attribute(expr: Apply, name: Any, value: Any) -> None:
    """Change one attribute of an applied op; shapes behind it are inferred again."""
    graph = expr.top_graph
    check_expr(graph, "set_arg", expr)
    if name not in expr.attrs:
        known = nearest(name, expr.attrs) or f"; expected one of {', '.join(expr.attrs) or 'none'}"
        raise OptionError(f"set_arg: {expr!r} has no attribute {name!r}{known}; operands change by replace_inputs")
    new = {**expr.attrs, name: value}
    if not graph.journal.deferring:
        with _in_present_form(expr, {name: value}):
            specs_of(expr, expr.inputs, new)
    with graph.journal.transaction("set_arg"):
        assign(graph, expr, "_attrs", MappingProxyType(new))
        infer_again(graph, [expr])


@contextmanager
def _in_present_form(expr: Apply, attrs: Mapping[str, Any]) -> Iterator[None]:
    """Adds to the error of an op that cannot read its new attributes how the present ones are written."""
    try:
        yield
    except ArgumentError as error:
        present = ", ".join(f"{name}={expr.attrs[name]!r}" for name in attrs if name in expr.attrs)
        raise ArgumentError(f"{error}; expected the form of the present {present}") from None


def with_argument(expr: Call, name: str | int, value: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of a call with one argument replaced, by its name or place.

    Raises OptionError for an unknown one, and for what is called.
    """
    signature = expr.signature
    target = isinstance(expr, CallMethod)  # the first argument is what is called
    if isinstance(name, int):
        return _with_place(expr, name, value, int(target))
    bound = signature.bind(*expr.args, **expr.kwargs)
    if target and expr.method == "__call__" and name == next(iter(signature.parameters)):
        raise OptionError(
            f"set_arg: {name!r} is the module that {expr!r} calls; put another one there by replace_module"
        )
    inside = _input_of_callee(expr, name) if name not in signature.parameters else None
    if inside is not None and isinstance(value, Node):
        return expr.unflatten_args([*expr.inputs[:inside], value, *expr.inputs[inside + 1 :]])
    if name not in signature.parameters:
        raise OptionError(f"set_arg: {expr!r} has no parameter {name!r}{_other_ways(expr, name, signature)}")
    bound.arguments[name] = value
    return bound.args, bound.kwargs


def _with_place(expr: Call, place: int, value: Any, first: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args = list(expr.args)
    if not 0 <= place < len(args) - first:
        count = len(args) - first
        raise OptionError(f"set_arg: {expr!r} has {count} argument{'s' * (count != 1)} given by position; got {place}")
    args[place + first] = value
    return tuple(args), expr.kwargs


def _input_of_callee(expr: Call, name: str) -> int | None:
    """Which input of a call becomes the input of that name of the graph that it enters."""
    child = child_graph(expr)
    names = [] if child is None else [node.name for node in child.inputs]
    return names.index(name) if name in names[1:] else None


def _other_ways(expr: Call, name: str, signature: inspect.Signature) -> str:
    """The end of a message about an argument that a call does not take: what the caller may have meant."""
    child = child_graph(expr)
    inside = [] if child is None else [node.name for node in child.inputs[1:]]
    known = nearest(name, [*signature.parameters, *inside])
    if known or not isinstance(expr, CallMethod) or expr.method != "__call__":
        return known or f"; expected one of {', '.join(signature.parameters)}"
    return f"; a {expr.inputs[0].module_type.__name__} keeps its own settings: put another one there by replace_module"
