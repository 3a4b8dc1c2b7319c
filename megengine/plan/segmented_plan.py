"""Plans of networks in which the number of results of an op depends on values: boxes that are kept, true elements."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.sizes import at, closed, names_of
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import apply
from megengine.plan.building import StepInfo, title
from megengine.plan.compiler import Plan
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph
from megengine.traced_module.bodies import Body, bodies_of
from megengine.traced_module.editing.expressions import add_input, set_outputs
from megengine.traced_module.formats import native as files
from megengine.traced_module.interpret import check_inputs
from megengine.traced_module.ir.expr import SHAPE_OF, Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.sizes import counting, note_counts, sizes_of

KEPT = 16  # plans of one segment of a network
Make = Callable[[InternalGraph], Plan]
Planned = Callable[[InternalGraph], Any]  # a plan of any kind
Values = dict[int, np.ndarray]  # by the id of the node


class Segment:
    """Ops between two cuts: compiled for the shapes at a call, and kept for those used last."""

    def __init__(self, exprs: list[Apply], outside: set[int], make: Callable[[InternalGraph], Plan]) -> None:
        self.exprs, self.make = exprs, make
        own = {id(n) for expr in exprs for n in expr.outputs}
        read = {id(n): n for expr in exprs for n in expr.inputs if id(n) not in own}
        self.reads = [n for n in read.values() if not isinstance(n.expr, Constant)]
        self.writes = [n for expr in exprs for n in expr.outputs if id(n) in outside]
        self.names = sorted(names_of([*(tuple(e.attrs.values()) for e in exprs), *(n.spec.shape for n in self.reads)]))
        self.plans: OrderedDict[Any, Plan] = OrderedDict()

    def plan(self, shapes: Sequence[tuple[int, ...]], sizes: dict[str, int]) -> Plan:
        """The plan for inputs of these shapes, compiled if it is not kept."""
        key = (*shapes, *(sizes[name] for name in self.names))
        if key not in self.plans:
            self.plans[key] = self.make(self._graph(shapes, sizes))
        self.plans.move_to_end(key)
        while len(self.plans) > KEPT:
            self.plans.popitem(last=False)
        return self.plans[key]

    def _graph(self, shapes: Sequence[tuple[int, ...]], sizes: dict[str, int]) -> InternalGraph:
        graph = InternalGraph(self.exprs[0].top_graph.name)
        made: dict[int, TensorNode] = {}
        for node, shape in zip(self.reads, shapes, strict=True):
            made[id(node)] = add_input(graph, node.name, TensorSpec(tuple(shape), node.spec.dtype, node.spec.device))
        for expr in self.exprs:
            for n in expr.inputs:
                if id(n) not in made:
                    made[id(n)] = graph.constant(n.expr.value, n.name, meta=n.expr.meta)
            inputs = [made[id(n)] for n in expr.inputs]
            if expr.op == SHAPE_OF:
                results: Any = graph.constant(np.array(inputs[0].spec.shape, np.int32), expr.name, meta=expr.meta)
            else:
                attrs = at(dict(expr.attrs), sizes)
                results = graph.apply(expr.op, *inputs, attrs=attrs, name=expr.name, meta=expr.meta)
            results = results if isinstance(results, tuple) else (results,)
            made.update((id(n), new) for n, new in zip(expr.outputs, results, strict=True))
        set_outputs(graph, [made[id(n)] for n in self.writes])
        return graph


class SegmentedPlan:
    """Plans of the segments of a network between ops whose number of results depends on values, and these ops.

    Each segment is compiled at the first call with new lengths; of each segment the plans used last are kept.
    """

    def __init__(self, source: InternalGraph, make: Make, planned: Planned | None) -> None:
        self.source = self.graph = source
        self._make, self._planned = make, planned
        self._stages = list(_stages(source, make))
        self._attrs = {id(expr): _attributes(expr, planned) for expr in counting(source)}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return title(self, counted(len(self._stages), "stage"))

    def _runs(self, inputs: Sequence[Any]) -> Iterator[tuple[Segment | Apply, Plan | None, list[np.ndarray], Values]]:
        """Segments with their plans and the ops between, their inputs, and all values so far, to which callers add."""
        graph = self.source
        tensors = check_inputs(graph, inputs)
        values: Values = {id(n): t._storage() for n, t in zip(graph.inputs, tensors, strict=True)}
        sizes = sizes_of(graph, [t.spec.shape for t in tensors])
        for stage in self._stages:
            nodes = stage.inputs if isinstance(stage, Apply) else stage.reads
            arrays = [_constant(n) if isinstance(n.expr, Constant) else values[id(n)] for n in nodes]
            if isinstance(stage, Segment):
                yield stage, stage.plan([a.shape for a in arrays], sizes), arrays, values
            else:
                yield stage, None, arrays, values
                made = [values[id(n)].shape for n in stage.outputs]
                note_counts(sizes, [n.spec for n in stage.outputs], made)

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        """Run on arrays (4-D: NCHW); returns the outputs."""
        values: Values = {}
        with self._lock:
            for stage, plan, arrays, values in self._runs(inputs):
                self._step(stage, plan, arrays, values)
        return [_constant(n) if isinstance(n.expr, Constant) else values[id(n)] for n in self.source.outputs]

    def _step(self, stage: Segment | Apply, plan: Plan | None, arrays: Sequence[np.ndarray], values: Values) -> None:
        """Run a segment, or an op between segments, and keep what it gives."""
        if isinstance(stage, Segment):
            assert plan is not None, stage
            values.update((id(n), array) for n, array in zip(stage.writes, plan(*arrays), strict=True))
            return
        tensors = [Tensor._wrap(a, n.dtype) for a, n in zip(arrays, stage.inputs, strict=True)]
        made = apply(stage.op, *tensors, **self._attrs[id(stage)])
        results = made if isinstance(made, tuple) else (made,)
        values.update((id(n), t._storage()) for n, t in zip(stage.outputs, results, strict=True))

    def __reduce__(self) -> Any:
        return SegmentedPlan, (self.source, self._make, self._planned)

    def profile(self, *inputs: Any, repeat: int = 20) -> list[tuple[StepInfo, float]]:
        """Median CPU seconds of every step over `repeat` runs, for these inputs."""
        rows: list[tuple[StepInfo, float]] = []
        with self._lock:
            for stage, plan, arrays, values in self._runs(inputs):
                if plan is not None:
                    rows += plan.profile(*arrays, repeat=repeat)
                    self._step(stage, plan, arrays, values)
                    continue
                times = []
                for _ in range(repeat):
                    begin = time.process_time()
                    self._step(stage, plan, arrays, values)
                    times.append(time.process_time() - begin)
                rows.append((_info(stage), float(np.median(times))))
        return rows

    def _known(self) -> Iterator[tuple[Segment | Apply, Plan | None]]:
        """Each segment with the plan that was used last, or that of the examples of lengths."""
        sizes: dict[str, int] = {}
        for node in self.source.nodes():
            note_counts(sizes, [node.spec], [closed(node.spec.shape)])
        for stage in self._stages:
            if isinstance(stage, Apply):
                yield stage, None
            elif stage.plans:
                yield stage, next(reversed(stage.plans.values()))
            else:
                yield stage, stage.plan([closed(n.spec.shape) for n in stage.reads], sizes)

    @property
    def steps(self) -> list[StepInfo]:
        """What runs, in order, for the lengths at the last call, or for examples of them."""
        with self._lock:
            return [s for stage, plan in self._known() for s in ([_info(stage)] if plan is None else plan.steps)]

    @property
    def arena_bytes(self) -> int:
        """The memory of the plans of all segments."""
        with self._lock:
            return sum(plan.arena_bytes for _, plan in self._known() if plan is not None)

    def save(self, path: str | Path) -> None:
        """As `Plan.save`."""
        files.save(self.source, path)

    def describe(self) -> str:
        """What `Plan.describe` says of each segment, and the ops between them."""
        ops = [e.op for e in counting(self.source)]
        texts = [f"plan of {self.source.name}, divided at {counted(len(ops), 'op')} whose results values number: {ops}"]
        with self._lock:
            for stage, plan in self._known():
                texts.append(plan.describe() if plan is not None else f"  {stage!r}")
        return "\n".join(texts)


def _attributes(expr: Apply, planned: Planned | None) -> dict[str, Any]:
    """Attributes of an op between segments; graphs that it runs are plans, each compiled when it runs first."""
    attrs = dict(expr.attrs)
    if planned is None:
        return attrs
    for name, body in bodies_of(expr):
        attrs[name] = Body(body.graph, _compiled(planned, body.graph))
    return attrs


def _compiled(planned: Planned, graph: InternalGraph) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    plan = cache(lambda: planned(graph))
    return lambda arrays: plan()(*arrays)


def _stages(graph: InternalGraph, make: Callable[[InternalGraph], Plan]) -> Iterator[Segment | Apply]:
    """Segments of a graph in order, and between them the ops that give lengths which the next segment needs."""
    cuts = {id(expr) for expr in counting(graph)}
    depth: dict[int, int] = {}  # of nodes: how many cuts are before it
    of_name: dict[str, int] = {}
    levels: list[tuple[list[Apply], list[Apply]]] = [([], [])]
    for expr in graph.exprs():
        if not isinstance(expr, Apply):
            continue
        names = names_of([tuple(expr.attrs.values()), *(n.spec.shape for n in expr.outputs)])
        level = max([depth.get(id(n), 0) for n in expr.inputs] + [of_name.get(name, 0) for name in names], default=0)
        is_cut = id(expr) in cuts
        while len(levels) <= level + is_cut:
            levels.append(([], []))
        levels[level][is_cut].append(expr)
        depth.update((id(n), level + is_cut) for n in expr.outputs)
        if is_cut:
            of_name[str(expr.attrs["count"])] = level + 1
    place = {id(n): i for i, (exprs, _) in enumerate(levels) for e in exprs for n in e.outputs}
    outside = {id(n) for n in graph.outputs}
    outside |= {id(n) for _, ops in levels for e in ops for n in e.inputs}
    for i, (exprs, _) in enumerate(levels):
        outside |= {id(n) for e in exprs for n in e.inputs if place.get(id(n), i) != i}
    for exprs, ops in levels:
        needed = [e for e in exprs if not _is_unused(e, outside)]
        if any(id(n) in outside for e in needed for n in e.outputs):
            yield Segment(needed, outside, make)
        yield from ops


def _is_unused(expr: Apply, outside: set[int]) -> bool:
    return not any(n.users or id(n) in outside for n in expr.outputs)


def _constant(node: TensorNode) -> np.ndarray:
    return node.expr.value._storage()


def _info(stage: Any) -> StepInfo:
    return StepInfo(stage.op, stage.name, "between plans", str(stage.meta.get("module", "")))
