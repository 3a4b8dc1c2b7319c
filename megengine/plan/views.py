"""Products that take their operands where they lie: what turns, cuts or scales an operand or the result becomes
strides, and a factor of the sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine.dispatch import get_op
from megengine.kernels.problem import Attrs, Problem
from megengine.kernels.registry import family
from megengine.kernels.strided import VIEWS
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import remove_dead
from megengine.traced_module.passes import only_user


def _dense(shape: tuple[int, ...]) -> list[int]:
    return [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]


@dataclass(frozen=True, slots=True)
class _Operand:
    """A view of a value, whose elements count as one byte, and a factor."""

    node: TensorNode
    view: np.ndarray
    origin: int  # where the value begins
    scale: float = 1.0

    def attribute(self) -> tuple[tuple[int, ...], tuple[int, ...], int]:
        shape = self.view.shape
        strides = [d if n == 1 else s for n, s, d in zip(shape, self.view.strides, _dense(shape), strict=True)]
        return shape, tuple(strides), self.view.__array_interface__["data"][0] - self.origin


def _whole(node: TensorNode) -> _Operand:
    view = np.lib.stride_tricks.as_strided(np.empty(1, np.int8), node.shape, _dense(node.shape), writeable=False)
    return _Operand(node, view, view.__array_interface__["data"][0])


def _factor(expr: Any) -> tuple[TensorNode, float] | None:
    """What an op multiplies by a number, or divides by one, and the factor."""
    if not isinstance(expr, Apply) or expr.op not in ("mul", "div"):
        return None
    for x, other in (expr.inputs, expr.inputs[::-1])[: 1 + (expr.op == "mul")]:
        if isinstance(other.expr, Constant) and other.spec.size == 1 and x.spec == expr.output.spec:
            number = float(other.expr.value.numpy().item())
            return (x, number) if expr.op == "mul" else (x, 1 / number) if number else None
    return None


def _behind(operand: _Operand, expr: Apply) -> _Operand:
    """What an op makes of an operand, as a view of the same value if it is one."""
    if (factor := _factor(expr)) is not None:
        return replace(operand, scale=operand.scale * factor[1])
    try:
        if expr.record.keeps_order:
            view = operand.view.reshape(expr.output.shape, copy=False)
        else:
            view = VIEWS[expr.op](operand.view, Attrs(expr.attrs))
    except ValueError:  # only a copy has this shape
        return _whole(expr.output)
    repeats = any(step == 0 and n > 1 for n, step in zip(view.shape, view.strides, strict=True))
    return _whole(expr.output) if repeats else replace(operand, view=view)


def _operand(node: TensorNode, *, turned: bool) -> _Operand:
    start, path = node, []
    while isinstance(node.expr, Apply):
        factor = _factor(node.expr)
        if factor is None and not (node.expr.record.keeps_order or node.expr.op in VIEWS):
            break
        path.append(node.expr)
        node = node.expr.inputs[0] if factor is None else factor[0]
    operand = _whole(node)
    for expr in reversed(path):
        operand = _behind(operand, expr)
    if not _has_rows(operand):  # talking heads, for example: the innermost axis of the value is one of the batch
        operand = _whole(start)
    return replace(operand, view=operand.view.swapaxes(-1, -2)) if turned else operand


def _has_rows(operand: _Operand) -> bool:
    """Whether rows or columns of the matrices lie in one piece; products of others take fifty times as long."""
    return 1 in operand.attribute()[1][-2:]


def _fold(graph: InternalGraph, product: Apply) -> bool:
    turns = product.attrs["transpose_a"], product.attrs["transpose_b"]
    a, b = (_operand(node, turned=turned) for node, turned in zip(product.inputs, turns, strict=True))
    root, perm, scale = product, tuple(range(product.output.spec.ndim)), a.scale * b.scale
    if (factor := _factor(only_user(root.output))) is not None:
        root, scale = only_user(root.output), scale * factor[1]
    user = only_user(root.output)
    if isinstance(user, Apply) and user.op == "transpose" and user.attrs["perm"][-1] == perm[-1]:
        root, perm = user, user.attrs["perm"]
    same = a.node is product.inputs[0] and b.node is product.inputs[1] and root is product
    if same or any(isinstance(o.node.expr, Constant) or min(o.view.strides) < 0 for o in (a, b)):
        return False
    attrs = {"views": (a.attribute(), b.attribute()), "perm": perm, "scale": scale}
    specs = [a.node.spec, b.node.spec]
    result: Any = get_op("fused_matmul").infer(*specs, **attrs)
    problem = Problem("fused_matmul", specs, [result], attrs)
    if not family("fused_matmul").for_plan(problem, {}):
        return False
    made = graph.apply(
        "fused_matmul", a.node, b.node, attrs=attrs, name=root.output.name, before=root, meta=product.meta
    )
    graph.replace_node({root.output: made})
    return True


def fold_views(graph: InternalGraph) -> bool:
    """Change in place; True if something changed. For plans without integers: sums are scaled, not what is summed."""
    products = [e for e in graph.exprs() if isinstance(e, Apply) and e.op == "matmul"]
    changed = [e for e in products if all(n.spec.size for n in (e.output, *e.inputs)) and _fold(graph, e)]
    remove_dead(graph)
    return bool(changed)
