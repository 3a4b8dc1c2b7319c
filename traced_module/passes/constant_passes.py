"""What can be known before a graph is run: constants, shapes of inputs, calls made twice, calls that do nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from megengine import module as M
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.dispatch.public import public_functions
from megengine.tensor import Tensor
from megengine.traced_module.editing.computed import constant_of
from megengine.traced_module.ir.expr import (
    SHAPE_OF,
    Apply,
    Call,
    CallFunction,
    CallMethod,
    Constant,
    Expr,
    GetAttr,
    is_call_module,
)
from megengine.traced_module.ir.functions import arguments_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import mark, remove_dead
from megengine.traced_module.ir.queries import child_graph
from megengine.traced_module.passes.layer_uses import all_graphs, graphs_below, has_hooks
from megengine.traced_module.passes.pass_manager import Pass
from megengine.traced_module.tracing.calls import shape_value

_MOST_ADDED = 1 << 16  # elements by which folding may make a model larger, for each call


def everywhere(run: Callable[[InternalGraph], bool]) -> Callable[[InternalGraph], bool]:
    """A transform of a graph and of all that its calls enter; what it leaves unused is removed."""

    def each(graph: InternalGraph) -> bool:
        changed = False
        for one in graphs_below(graph):
            if run(one):
                remove_dead(one)
                changed = True
        return changed

    each.__doc__ = run.__doc__
    return each


# ---------------------------------------------------------------- constants


@everywhere
def attributes_to_constants(graph: InternalGraph) -> bool:
    """Tensors of modules become constants of the graph, under their names."""
    changed = False
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, GetAttr) and isinstance(expr.output, TensorNode):
            _become(graph, expr)
            changed = True
    return changed


def _become(graph: InternalGraph, expr: Expr) -> None:
    """Put constants in the place of what an expression makes."""
    with graph._edit("constants"):
        values = [graph._computed(constant_of, node) for node in expr.outputs]
        _replace(graph, expr, values)


def _replace(graph: InternalGraph, expr: Expr, values: list[Tensor]) -> None:
    for node, value in zip(expr.outputs, values, strict=True):
        made = graph.constant(value, node.name, after=expr, meta=expr.meta)
        graph.replace_node({node: made})
    names, made_by = [n.name for n in expr.outputs], expr._next
    graph.erase(expr)
    for name in reversed(names):  # constants stand behind each other, the last one first
        assert made_by is not None
        graph.rename(made_by.outputs[0], name)
        made_by = made_by._next


@everywhere
def fold_constants(graph: InternalGraph) -> bool:
    """Calls that depend on constants and tensors of the module only are made now. Random ones are left alone."""
    changed = False
    for expr in graph.exprs(recursive=False):
        if not _is_fixed(expr):
            continue
        if sum(n.spec.size for n in expr.outputs) <= sum(n.spec.size for n in expr.inputs) + _MOST_ADDED:
            _become(graph, expr)
            changed = True
    return changed


def _is_fixed(expr: Expr) -> TypeGuard[Call]:
    if not isinstance(expr, Call) or not expr.inputs or _same_call(expr) is None:
        return False
    return all(isinstance(n, TensorNode) and isinstance(n.expr, (Constant, GetAttr)) for n in expr.inputs)


def is_known(node: Any) -> bool:
    """True for a tensor that only constants and tensors of the module decide."""
    if not isinstance(node, TensorNode):
        return False
    expr = node.expr
    if isinstance(expr, (Constant, GetAttr)):
        return True
    return (
        isinstance(expr, (Call, Apply))
        and bool(expr.inputs)
        and _same_call(expr) is not None
        and all(map(is_known, expr.inputs))
    )


def fix_input_shapes(graph: InternalGraph) -> bool:
    """Shapes that the graph reads become what they were when it was traced; it holds for those shapes only then.

    A submodule that is called with several shapes is left alone.
    """
    changed = False
    for each in graphs_below(graph):
        if not _has_one_shape(each):
            continue
        for expr in each.exprs(recursive=False):
            known = isinstance(expr, Apply) and expr.op == SHAPE_OF
            if known and shape_value(expr.outputs[0]) is not None:
                _become(each, expr)
                changed = True
    return changed


def _has_one_shape(graph: InternalGraph) -> bool:
    """True if every call enters a graph with the shapes that it was traced with."""
    have = _specs(graph.inputs)
    calls = [e for g in all_graphs(graph) for e in g.exprs(recursive=False) if child_graph(e) is graph]
    return all(_specs(call.inputs) == have for call in calls)


def _specs(nodes: Any) -> list[TensorSpec]:
    return [n.spec for n in nodes if isinstance(n, TensorNode)]


# ---------------------------------------------------------------- what is done twice, and what does nothing


@everywhere
def eliminate_common(graph: InternalGraph) -> bool:
    """Calls of one function with the same arguments are made once. Random ones and assignments are left alone."""
    seen: dict[Any, Expr] = {}
    changed = False
    for expr in graph.exprs(recursive=False):
        key = _same_call(expr)
        if key is None:
            continue
        first = seen.setdefault(key, expr)
        if first is not expr:
            mark([first], "EliminateCommon")
            graph.replace_node(dict(zip(expr.outputs, first.outputs, strict=True)))
            changed = True
    return changed


def _same_call(expr: Expr) -> Any:
    """Equal for calls that give the same; None for those that may not."""
    inputs = tuple(id(n) for n in expr.inputs)
    if isinstance(expr, CallFunction) and _repeats_itself(expr.qualified):
        return (expr.qualified, inputs, arguments_key(expr.arguments))
    if isinstance(expr, CallMethod) and expr.method not in ("__call__", "__setitem__"):
        return (expr.method, inputs, arguments_key(expr.arguments))
    if isinstance(expr, Apply) and not get_op(expr.op).random:
        return (expr.op, inputs, tuple(expr.attrs.items()))
    return None


def _repeats_itself(qualified: str) -> bool:
    """True for public functions that draw nothing; of a user's wrapped function nothing is known."""
    return qualified in public_functions and not public_functions[qualified].random


@everywhere
def drop_identities(graph: InternalGraph) -> bool:
    """Calls that give what they get are left out, if they do so for inputs of every shape.

    Identity, Dropout in evaluation, `astype` to the dtype it has, `x + 0`, `x * 1`, `x[:]`, a transposition that
    exchanges nothing, `concat` of one tensor.
    """
    changed = False
    for expr in graph.exprs(recursive=False):
        if _does_nothing(expr):
            values = [n for n in expr.inputs if isinstance(n, TensorNode)]
            graph.replace_node({expr.outputs[0]: values[0]})
            changed = True
    return changed


def _does_nothing(expr: Expr) -> bool:
    if is_call_module(expr):
        layer = expr.inputs[0].owner
        dropout = is_call_module(expr, M.Dropout) and not layer.training
        return (dropout or is_call_module(expr, M.Identity)) and not has_hooks(layer)
    values = [n for n in expr.inputs if isinstance(n, TensorNode)]
    if not isinstance(expr, Call) or len(values) != 1 or len(expr.outputs) != 1:
        return False
    if values[0].spec != expr.outputs[0].spec or _same_call(expr) is None:
        return False
    name = expr.method if isinstance(expr, CallMethod) else expr.qualified.rpartition(".")[2]
    test = _NOTHING.get(name.strip("_"))
    return test is not None and test([v for v in expr.named_args.values() if v is not values[0]])


def _one(rest: list[Any]) -> bool:
    return len(rest) == 1 and type(rest[0]) in (int, float) and rest[0] == 1


def _zero(rest: list[Any]) -> bool:
    return len(rest) == 1 and type(rest[0]) in (int, float) and rest[0] == 0


def _takes_all(rest: list[Any]) -> bool:
    keys = rest[0] if isinstance(rest[0], tuple) else (rest[0],)
    return all(k is Ellipsis or k in (slice(None), slice(None, None, 1)) for k in keys)


def _in_order(rest: list[Any]) -> bool:
    order = rest[0] if len(rest) == 1 and isinstance(rest[0], (tuple, list)) else rest
    if len(order) == 1 and isinstance(order[0], (tuple, list)):
        order = order[0]
    return list(order) == list(range(len(order))) and bool(order)


# operation -> whether it does nothing, from its arguments without the tensor; shape and dtype are kept
_NOTHING: dict[str, Callable[[list[Any]], bool]] = {
    **dict.fromkeys(("mul", "rmul", "imul", "truediv", "itruediv", "div", "pow", "ipow"), _one),
    **dict.fromkeys(("add", "radd", "iadd", "sub", "isub"), _zero),
    **dict.fromkeys(("astype", "pos"), lambda rest: True),
    **dict.fromkeys(("transpose",), _in_order),
    "getitem": _takes_all,
}

ATTRIBUTES_TO_CONSTANTS = Pass("AttrToConstant", attributes_to_constants, by_name_only=True)
FOLD_CONSTANTS = Pass("FoldConstants", fold_constants)
FIX_INPUT_SHAPE = Pass("FixInputShape", fix_input_shapes, by_name_only=True)
ELIMINATE_COMMON = Pass("EliminateCommon", eliminate_common)
DROP_IDENTITIES = Pass("DropIdentities", drop_identities)
