"""What constants and tensors of the module decide is computed now.

No rules: any call may be one, and all its results go at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from megengine.dispatch import get_op
from megengine.dispatch.public import public_functions
from megengine.tensor import Tensor
from megengine.traced_module.editing.computed import constant_of
from megengine.traced_module.ir.expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr
from megengine.traced_module.ir.functions import arguments_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes.layer_uses import graphs_below
from megengine.traced_module.passes.pass_manager import Pass

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


@everywhere
def attributes_to_constants(graph: InternalGraph) -> bool:
    """Tensors of modules become constants of the graph, under their names."""
    changed = False
    for expr in graph.exprs(recursive=False):
        if isinstance(expr, GetAttr) and isinstance(expr.output, TensorNode):
            become_constant(graph, expr)
            changed = True
    return changed


def become_constant(graph: InternalGraph, expr: Expr) -> None:
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
    """Calls and ops that depend on constants and tensors of the module only are made now; results keep their names.

    Random ones are left alone, and calls that would make the model much larger.
    """
    of_calls = graph._inputs_self()
    changed = False
    for expr in graph.exprs(recursive=False):
        if not expr.inputs or call_key(expr) is None or not all(map(_is_held, expr.inputs)):
            continue
        added = sum(n.spec.size for n in expr.outputs) - sum(n.spec.size for n in expr.inputs)
        if not of_calls or added <= _MOST_ADDED:
            become_constant(graph, expr)
            changed = True
    return changed


def _is_held(node: Any) -> bool:
    return isinstance(node, TensorNode) and isinstance(node.expr, (Constant, GetAttr))


def is_known(node: Any) -> bool:
    """True for a tensor that only constants and tensors of the module decide."""
    if _is_held(node) or not isinstance(node, TensorNode):
        return _is_held(node)
    expr = node.expr
    return bool(expr.inputs) and call_key(expr) is not None and all(map(is_known, expr.inputs))


def call_key(expr: Expr) -> Any:
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


def flod_constants(graph: InternalGraph) -> bool:
    """Tensors of modules become constants, and what depends on constants only becomes one too."""
    changed = attributes_to_constants(graph)
    return fold_constants(graph) or changed


ATTRIBUTES_TO_CONSTANTS = Pass("AttrToConstant", attributes_to_constants, by_name_only=True)
FOLD_CONSTANTS = Pass("FoldConstants", fold_constants)
FLOD_CONSTANT = Pass("FlodConstant", flod_constants, by_name_only=True)  # spelt as in MegEngine
