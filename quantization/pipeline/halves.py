"""A float32 network in bfloat16 or float16: constants and the values between ops; and how near the results are."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import ml_dtypes
import numpy as np

from megengine import plan
from megengine.core.dtype import as_dtype, storage_of
from megengine.core.errors import DTypeError, OptionError, QuantizationError, nearest
from megengine.core.spec import TensorSpec
from megengine.dispatch import get_op
from megengine.kernels.halves import HALVES
from megengine.quantization.checks import Agreement, require_float, require_float_modules
from megengine.quantization.ranges import Progress, as_batches
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.editing.rewiring import set_input
from megengine.traced_module.ir.expr import Apply, Constant, Expr
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.ir.primitives import assign, exchange_outputs, remove_dead
from megengine.traced_module.passes import run_passes
from megengine.traced_module.passes.activations import name_activations

_FLOAT32 = np.dtype(np.float32)
HALF_NAMES = {"bf16": "bfloat16", "fp16": "float16", "bfloat16": "bfloat16", "float16": "float16"}


def to_half(model: TracedModule | InternalGraph, dtype: Any = "bfloat16", *, float_ends: bool = True) -> TracedModule:
    """A copy of a float32 network whose constants and values between ops are bfloat16 or float16.

    Every op computes the float32 result of its operands and rounds it once. What is computed from integers alone, such
    as positions, stays in float32, and so do ops that take no halves. Constants beyond the range of the type become its
    largest number, and single ones too small for it (an epsilon) its smallest.

    Args:
        model: a traced module, or an op-level graph.
        dtype: "bfloat16" (or "bf16") or "float16" ("fp16").
        float_ends: inputs and results stay float32, with casts behind and before them.

    Raises:
        OptionError: another dtype.
        QuantizationError: the network is quantized, or has no float32 value.
    """
    if isinstance(dtype, str) and dtype not in HALF_NAMES:
        raise OptionError(
            f"to_half: dtype is {dtype!r}; expected one of {sorted(HALF_NAMES)}{nearest(dtype, HALF_NAMES)}"
        )
    wanted = as_dtype(HALF_NAMES[dtype] if isinstance(dtype, str) else dtype)
    if not isinstance(wanted, np.dtype) or wanted not in HALVES:
        raise OptionError(f"to_half: dtype is {wanted}; expected bfloat16 or float16")
    if isinstance(model, TracedModule):
        require_float_modules(model)
    graph = lower(model).graph
    require_float(graph)
    name_activations(graph)  # their constants are no longer known when they are rounded or folded
    run_passes(graph)
    if not any(n.dtype == _FLOAT32 for n in graph.nodes() if isinstance(n, TensorNode)):
        raise QuantizationError(f"to_half: network {graph.name!r} has no float32 value; give a float32 network")
    _Retyping(graph, _FLOAT32, wanted).run(float_ends=float_ends)
    return TracedModule.from_graph(graph)


def in_float32(graph: InternalGraph) -> InternalGraph:
    """The graph, or if it has bfloat16 or float16 values a copy that computes in float32 between its ends."""
    halves = {n.dtype for n in graph.nodes() if isinstance(n, TensorNode)} & HALVES
    if not halves:
        return graph
    graph = graph.clone()
    for half in halves:
        _Retyping(graph, half, _FLOAT32).run(float_ends=True)
    run_passes(graph)
    return graph


class _Retyping:
    """Puts values of the type `dtype` in the place of those of the type `source`."""

    def __init__(self, graph: InternalGraph, source: np.dtype, dtype: np.dtype) -> None:
        self.graph, self.source, self.dtype = graph, source, dtype
        self.halves: dict[int, TensorNode] = {}  # value -> the same in the type
        self.floats: dict[int, TensorNode] = {}  # value -> what is in its place, back in the source's type
        self.exact: set[int] = set()  # values that are computed from integers alone
        self.names: list[tuple[TensorNode, str]] = []

    def run(self, *, float_ends: bool) -> None:
        graph, outputs = self.graph, list(self.graph.outputs)
        exprs = [e for e in graph.exprs() if isinstance(e, Apply)]
        if not float_ends:
            self._narrow_inputs()
        for expr in exprs:
            if any(n.dtype in (self.source, self.dtype) for n in (*expr.inputs, *expr.outputs)):
                self._change(expr)
        for node in dict.fromkeys(outputs):
            made = self.halves.get(id(node), node)
            if made is node or (node.dtype == self.source and float_ends and not isinstance(node.expr, Apply)):
                continue
            back = made.dtype != node.dtype and (float_ends or node.dtype != self.source)
            end = self._cast(made, node.dtype, after=made.expr) if back else made
            exchange_outputs(graph, node, end)
            self.names.insert(0, (end, node.name))
        remove_dead(graph)
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
            return
        inputs = [self._half(n, expr) if n.dtype == self.source else self._other(n) for n in expr.inputs]
        attrs = {k: self.dtype if isinstance(v, np.dtype) and v == self.source else v for k, v in expr.attrs.items()}
        try:
            made = self.graph.apply(expr.op, *inputs, attrs=attrs, name=expr.name, before=expr, meta=expr.meta)
        except DTypeError:  # the op takes no halves
            for i, node in enumerate(expr.inputs):
                if node is self.halves.get(id(node)) or (id(node) in self.halves and isinstance(node.expr, Apply)):
                    set_input(self.graph, expr, i, self._float(node, expr))
            return
        for old, new in zip(expr.outputs, made if isinstance(made, tuple) else (made,), strict=True):
            self.halves[id(old)] = new
            self.names.append((new, old.name))

    def _is_exact(self, expr: Apply) -> bool:
        """True for floats that come from integers, and for elementwise arithmetic and moves of those."""
        floats = [n for n in expr.inputs if n.dtype in (self.source, self.dtype)]
        moving = [n for n in floats if not isinstance(n.expr, Constant)]
        if not moving:
            return not floats
        return all(id(n) in self.exact for n in moving) and not get_op(expr.op).weighted

    def _half(self, node: TensorNode, user: Expr) -> TensorNode:
        if id(node) not in self.halves:
            if isinstance(node.expr, Constant):
                value = _rounded(node.expr.value.numpy(), self.dtype)
                made = self.graph.constant(value, node.name, before=user, meta=node.expr.meta)
                self.names.append((made, node.name))
            else:
                made = self._cast(node, self.dtype, after=node.expr)
            self.halves[id(node)] = made
        return self.halves[id(node)]

    def _other(self, node: TensorNode) -> TensorNode:
        """A value that is no float32 as the changed ops have it."""
        return self.halves.get(id(node), node)

    def _float(self, node: TensorNode, user: Expr) -> TensorNode:
        if id(node) not in self.floats:
            self.floats[id(node)] = self._cast(self.halves[id(node)], self.source, after=self.halves[id(node)].expr)
        return self.floats[id(node)]

    def _cast(self, node: TensorNode, dtype: np.dtype, *, after: Expr) -> TensorNode:
        name = f"{node.name}_{dtype}"
        return self.graph.apply("cast", node, attrs={"dtype": dtype}, name=name, after=after, meta=dict(after.meta))


def _rounded(value: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Constants in the type: finite ones stay finite, a single one that is not zero stays so."""
    limits = ml_dtypes.finfo(dtype)
    largest = np.float32(limits.max)
    made = np.where(np.isfinite(value), np.clip(value, -largest, largest), value)
    if value.size == 1 and 0 < abs(value.item()) < float(limits.smallest_subnormal):
        made = np.copysign(np.float32(limits.smallest_subnormal), value)
    return np.asarray(made).reshape(value.shape).astype(dtype)


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near the results of a network are to those of the one that it was made from.

    `sqnr_db` and `cosine` are over all results, `largest_error` is the largest difference, `agreement` the share of
    samples whose largest value in the first result stands at the same place.
    """

    sqnr_db: float
    cosine: float
    agreement: float
    largest_error: float
    batches: int

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite ratio (no error at all) is None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def _typed(array: np.ndarray, node: TensorNode) -> np.ndarray:
    return array.astype(storage_of(node.dtype), copy=False)


def likeness(
    exact: TracedModule, other: TracedModule, batches: Iterable[Any], *, progress: Progress | None = None
) -> Likeness:
    """Compare two networks with equal inputs, as compiled plans, on batches of inputs.

    Raises CalibrationError for batches that are no inputs of the network.
    """
    plans, total = [plan.compile(model) for model in (exact, other)], Agreement()
    same = samples = count = 0
    for arrays in as_batches(batches, plans[0].source):
        wanted, got = (one(*map(_typed, arrays, one.graph.inputs)) for one in plans)
        for a, b in zip(wanted, got, strict=True):
            total.update(a, b.astype(a.dtype))
        a, b = (y[0].reshape(len(y[0]) if y[0].ndim else 1, -1) for y in (wanted, got))
        same += int((a.argmax(1) == b.argmax(1)).sum())
        samples, count = samples + len(a), count + 1
        if progress is not None:
            progress("compare", count, None)
    return Likeness(total.sqnr_db, total.cosine, same / max(samples, 1), total.largest, count)
