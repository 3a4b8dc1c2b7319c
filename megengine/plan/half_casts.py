"""float16 and bfloat16 in plans: what has no kernel for them is computed in float32, between casts."""

from __future__ import annotations

import numpy as np

from megengine.dispatch import get_op
from megengine.kernels.elementwise import cannot_run
from megengine.kernels.half_conversion import HALVES, converted, widened
from megengine.plan.fuse import fuse
from megengine.plan.layouts import choices, problem_of
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead

_FLOAT32 = np.dtype(np.float32)


def _needs_float32(expr: Apply, *, exact: bool) -> bool:
    if not get_op(expr.op).widens([n.spec for n in expr.inputs]):
        return False
    return all(choices(expr, rows=rows, exact=exact) is None for rows in (False, True))


def _is_elementwise(expr: Apply) -> bool:
    problem = problem_of(expr, rows=False)
    return problem is not None and cannot_run(widened(problem)) is None


class _Widening:
    def __init__(self, graph: InternalGraph) -> None:
        self.graph = graph
        self.kept: dict[int, TensorNode] = {}  # widened values by the value

    def operand(self, node: TensorNode, user: Apply) -> TensorNode:
        if node.dtype not in HALVES:
            return node
        constant = isinstance(node.expr, Constant)  # chains of ops convert what they read, which is half as much
        if not constant and _is_elementwise(user):
            return self.cast(node, _FLOAT32, user)
        if id(node) in self.kept:
            return self.kept[id(node)]
        if constant:
            value = converted(node.expr.value.numpy(), _FLOAT32)
            made = self.graph.constant(value, node.name, before=user, meta=node.expr.meta)
        else:
            made = self.cast(node, _FLOAT32, user)
        self.kept[id(node)] = made
        return made

    def cast(self, node: TensorNode, dtype: np.dtype, user: Apply) -> TensorNode:
        return self.graph.apply("cast", node, attrs={"dtype": dtype}, name=node.name, before=user, meta=user.meta)

    def widen(self, expr: Apply) -> None:
        inputs = [self.operand(n, expr) for n in expr.inputs]
        made = self.graph.apply(expr.op, *inputs, attrs=expr.attrs, name=expr.name, before=expr, meta=expr.meta)
        for old, new in zip(expr.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            self.graph.replace_node({old: new if new.dtype == old.dtype else self.cast(new, old.dtype, expr)})


def widen_halves(graph: InternalGraph, *, exact: bool) -> bool:
    """Change in place; True if something changed. Layers are fused before, so that they round once."""
    if not any(n.dtype in HALVES for n in graph.nodes() if isinstance(n, TensorNode)):
        return False
    fuse(graph, exact=exact)
    widening = _Widening(graph)
    for expr in list(graph.exprs()):
        if isinstance(expr, Apply) and _needs_float32(expr, exact=exact):
            widening.widen(expr)
    return bool(remove_dead(graph))
