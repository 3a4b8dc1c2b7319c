"""FoldConstants: what depends on constants and tensors of the module only is computed now.

No rule: any call may be folded, and all its results go at once.
"""

from __future__ import annotations

from typing import Any

from megengine.core.sizes import is_open
from megengine.dispatch.public import public_functions
from megengine.traced_module.editing.computed import constant_of
from megengine.traced_module.ir.expr import Apply, CallFunction, CallMethod, Constant, Expr, GetAttr
from megengine.traced_module.ir.functions import arguments_key
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes.layer_uses import everywhere
from megengine.traced_module.passes.pass_manager import Pass

_MOST_ADDED = 1 << 16  # elements by which folding may make a model larger, for each call


def become_constant(graph: InternalGraph, expr: Expr) -> None:
    """Put constants in the place of what an expression makes."""
    with graph.journal.transaction("constants"):
        values = [graph.journal.computed(constant_of, node) for node in expr.outputs]
        for node, value in zip(expr.outputs, values, strict=True):
            constant = graph.constant(value, node.name, after=expr, meta=expr.meta)
            graph.replace_node({node: constant})
        names, made_by = [n.name for n in expr.outputs], expr.following
        graph.erase(expr)
        for name in reversed(names):  # constants stand behind each other, the last one first
            assert made_by is not None
            graph.rename(made_by.outputs[0], name)
            made_by = made_by.following


@everywhere
def fold_constants(graph: InternalGraph) -> bool:
    """Calls and ops that depend on constants and tensors of the module only are made now; results keep their names.

    Random ones are left alone, and calls that would make the model much larger.
    """
    of_calls = graph.of_calls
    changed = False
    for expr in graph.exprs(recursive=False):
        if not _is_fixed(expr) or not all(map(_is_held, expr.inputs)):
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
    return _is_fixed(expr) and all(map(is_known, expr.inputs))


def _is_fixed(expr: Expr) -> bool:
    """True for a call whose operands say what it gives: nothing random, and no size that is open."""
    is_open_op = isinstance(expr, Apply) and is_open(dict(expr.attrs))
    return bool(expr.inputs) and call_key(expr) is not None and not is_open_op


def call_key(expr: Expr) -> Any:
    """Equal for calls that give the same; None for those that may not."""
    inputs = tuple(id(n) for n in expr.inputs)
    public = public_functions.get(expr.qualified) if isinstance(expr, CallFunction) else None
    if public is not None and not public.random:  # nothing is known of a function that a user wrapped
        assert isinstance(expr, CallFunction)
        return (expr.qualified, inputs, arguments_key(expr.arguments))
    if isinstance(expr, CallMethod) and expr.method not in ("__call__", "__setitem__"):
        return (expr.method, inputs, arguments_key(expr.arguments))
    if isinstance(expr, Apply) and not expr.record.random:
        return (expr.op, inputs, tuple(expr.attrs.items()))
    return None


FOLD_CONSTANTS = Pass("FoldConstants", fold_constants)
