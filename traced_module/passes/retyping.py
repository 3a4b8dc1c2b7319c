"""Values of one float type in the place of another: float32 networks in bfloat16 or float16, and back."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from megengine.core.dtype import is_float
from megengine.core.errors import DTypeError
from megengine.core.sizes import renamed
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.kernels.half_conversion import HALVES
from megengine.traced_module.editing.rewiring import set_input
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, exchange_outputs, remove_dead, use_nodes
from megengine.traced_module.sizes import counting, rename_lengths

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def widen(graph: InternalGraph) -> None:
    """Let a graph of ops with bfloat16 or float16 values compute in float32 between its ends.

    Float64 is narrowed where layers compute in it: elsewhere it is the arithmetic of sizes and places.
    """
    for half in HALVES:
        retype(graph, half, FLOAT32, float_ends=True)
    if any(get_op(e.op).weighted and _in_float64(e) for e in graph.exprs() if isinstance(e, Apply)):
        retype(graph, FLOAT64, FLOAT32, float_ends=True)


def _in_float64(layer: Apply) -> bool:
    return all(isinstance(n, TensorNode) and n.dtype == FLOAT64 for n in layer.inputs)


def retype(graph: InternalGraph, source: np.dtype, dtype: np.dtype, *, float_ends: bool) -> None:
    """Let ops that take values of the type `source` take and make such of `dtype`, as far as they can.

    With `float_ends` inputs and results keep their types.
    """
    _Retyping(graph, source, dtype).run(float_ends=float_ends)


class _Retyping:
    """Puts values of the type `dtype` in the place of those of the type `source`."""

    def __init__(self, graph: InternalGraph, source: np.dtype, dtype: np.dtype) -> None:
        self.graph, self.source, self.dtype = graph, source, dtype
        self.halves: dict[int, TensorNode] = {}  # value -> the same in the type
        self.floats: dict[int, TensorNode] = {}  # value -> what is in its place, back in the source's type
        self.exact: set[int] = set()  # values that are computed from integers alone
        self.given: set[int] = set()  # inputs in the source's type, and what leads from them to choices
        self.choosing: set[int] = set()  # ops that lead to choices
        self.lengths: dict[str, str] = {}  # length that depends on values -> the same of the changed ops
        self.names: list[tuple[TensorNode, str]] = []

    def run(self, *, float_ends: bool) -> None:
        graph, outputs = self.graph, list(self.graph.outputs)
        if not any(n.dtype == self.source for n in graph.nodes() if isinstance(n, TensorNode)):
            return
        exprs = [e for e in graph.exprs() if isinstance(e, Apply)]
        if not float_ends:
            self._narrow_inputs()
        elif self.dtype in HALVES:
            self.given = {id(n) for n in graph.inputs}
            self.choosing = _leading_to_choices(exprs)
        for expr in exprs:
            if any(n.dtype in (self.source, self.dtype) for n in (*expr.inputs, *expr.outputs)):
                self._change(expr)
            elif any(id(n) in self.halves for n in expr.inputs):  # integers and truth values of changed ops
                self._repeat(expr)
        for node in dict.fromkeys(outputs):
            end = self.halves.get(id(node), node)
            if end is node or (node.dtype == self.source and float_ends and not isinstance(node.expr, Apply)):
                continue
            if end.dtype != node.dtype and (float_ends or node.dtype != self.source):
                end = self._cast(end, node.dtype, after=end.expr)
            exchange_outputs(graph, node, end)
            self.names.insert(0, (end, node.name))
        remove_dead(graph)
        taken = {expr.attrs["count"] for expr in counting(graph)}
        rename_lengths(graph, {new: old for old, new in self.lengths.items() if old not in taken})
        for node, name in self.names:
            if node.expr.in_graph and node.name != name and name not in graph.names:
                graph.rename(node, name)
        graph.lint()

    def _narrow_inputs(self) -> None:
        for node in list(self.graph.inputs):
            if isinstance(node, TensorNode) and node.dtype == self.source:
                assign(self.graph, node, "_spec", TensorSpec(node.shape, self.dtype, node.device))
                self.halves[id(node)] = node

    def _change(self, expr: Apply) -> None:
        """Put the op on halves beside the op, or leave it where it is."""
        if self._is_exact(expr):
            self.exact.update(id(n) for n in expr.outputs)
        elif self._is_given(expr):
            self.given.update(id(n) for n in expr.outputs)
        else:
            self._repeat(expr)
            return
        use_nodes(self.graph, expr, [self._follow(n) for n in expr.inputs])

    def _repeat(self, expr: Apply) -> None:
        inputs = [self._half(n, expr) if n.dtype == self.source else self._other(n) for n in expr.inputs]
        attrs = {k: self.dtype if isinstance(v, np.dtype) and v == self.source else v for k, v in expr.attrs.items()}
        attrs = renamed(attrs, self.lengths) if self.lengths else attrs
        try:
            results = self.graph.apply(expr.op, *inputs, attrs=attrs, name=expr.name, before=expr, meta=expr.meta)
        except DTypeError:  # the op takes no halves
            use_nodes(self.graph, expr, [self._follow(n) for n in expr.inputs])
            for i, node in enumerate(expr.inputs):
                if node is self.halves.get(id(node)) or (id(node) in self.halves and isinstance(node.expr, Apply)):
                    set_input(self.graph, expr, i, self._float(node, expr))
            return
        results = results if isinstance(results, tuple) else (results,)
        if get_op(expr.op).counts:
            self.lengths[expr.attrs["count"]] = results[0].expr.attrs["count"]
        for old, new in zip(expr.outputs, results, strict=True):
            self.halves[id(old)] = new
            self.names.append((new, old.name))

    def _is_exact(self, expr: Apply) -> bool:
        """True for floats that come from integers, and for elementwise arithmetic and moves of those."""
        floats = [n for n in expr.inputs if n.dtype in (self.source, self.dtype)]
        moving = _moving(floats)
        if not moving:
            return not floats
        return all(id(n) in self.exact for n in moving) and not get_op(expr.op).weighted

    def _is_given(self, expr: Apply) -> bool:
        """True for what leads from inputs to choices: other indices would follow from halves of coordinates or keys."""
        floats = [n for n in expr.inputs if n.dtype in (self.source, self.dtype)]
        return id(expr) in self.choosing and all(id(n) in self.given | self.exact for n in _moving(floats))

    def _half(self, node: TensorNode, user: Expr) -> TensorNode:
        if id(node) not in self.halves:
            if isinstance(node.expr, Constant):
                value = _rounded(node.expr.value.numpy(), self.dtype)
                half = self.graph.constant(value, node.name, before=user, meta=node.expr.meta)
                self.names.append((half, node.name))
            else:
                half = self._cast(node, self.dtype, after=node.expr)
            self.halves[id(node)] = half
        return self.halves[id(node)]

    def _other(self, node: TensorNode) -> TensorNode:
        """A value that is no float32 as the changed ops have it."""
        return self.halves.get(id(node), node)

    def _follow(self, node: TensorNode) -> TensorNode:
        """What an op that stays as it is reads: integers and truth values are those of changed ops."""
        return node if node.dtype in (self.source, self.dtype) else self._other(node)

    def _float(self, node: TensorNode, user: Expr) -> TensorNode:
        if id(node) not in self.floats:
            self.floats[id(node)] = self._cast(self.halves[id(node)], self.source, after=self.halves[id(node)].expr)
        return self.floats[id(node)]

    def _cast(self, node: TensorNode, dtype: np.dtype, *, after: Expr) -> TensorNode:
        name = f"{node.name}_{dtype}"
        return self.graph.apply("cast", node, attrs={"dtype": dtype}, name=name, after=after, meta=dict(after.meta))


def _leading_to_choices(exprs: list[Apply]) -> set[int]:
    """Ops without constant weights that give indices, integers or truth values of floats, and those before them."""
    found: set[int] = set()
    for expr in reversed(exprs):
        if not any(is_float(n.dtype) for n in expr.inputs):
            continue
        used = [n for n in expr.outputs if n.users or any(n is one for one in n.graph.outputs)]
        leads = any(not is_float(n.dtype) or any(id(u) in found for u in n.users) for n in used)
        weights = get_op(expr.op).weighted and any(isinstance(n.expr, Constant) for n in expr.inputs)
        if leads and not weights:
            found.add(id(expr))
    return found


def _moving(nodes: list[TensorNode]) -> list[TensorNode]:
    return [n for n in nodes if not isinstance(n.expr, Constant)]


def _rounded(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Constants in the type: finite ones stay finite, a single one that is not zero stays so."""
    limits = ml_dtypes.finfo(dtype)
    largest = np.float32(limits.max)
    near = np.where(np.isfinite(value), np.clip(value, -largest, largest), value)
    if value.size == 1 and 0 < abs(value.item()) < float(limits.smallest_subnormal):
        near = np.copysign(np.float32(limits.smallest_subnormal), value)
    return np.asarray(near).reshape(value.shape).astype(dtype)
