"""Plans on a GPU: the fused graph as launches one after the other, recorded as a CUDA graph and replayed."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.dtype import storage_of
from megengine.core.errors import DeviceError, DTypeError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import runner
from megengine.kernels import cuda
from megengine.kernels.cuda.array import DeviceArray
from megengine.kernels.cuda.runtime import Recording, runtime_of
from megengine.kernels.kernel import Kernel
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.plan.building import StepInfo, is_exact, title
from megengine.plan.chains import fuse_chains
from megengine.plan.fuse import fuse
from megengine.plan.gpu_layouts import last_kernel, prefers_last, turnable, turned_op
from megengine.plan.gpu_tuning import GpuTuner
from megengine.plan.layouts import one_layout
from megengine.plan.norms import name_norms
from megengine.plan.views import fold_views
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph
from megengine.traced_module.formats import native as files
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.moving import move
from megengine.traced_module.passes import run_passes
from megengine.traced_module.passes.activations import name_activations

# They lie as their operand does, since moving it takes as long as they do.
FOLLOWING = ("max_pool2d", "avg_pool2d", "qavg_pool2d", "resize")


@functools.cache
def pointwise() -> frozenset[str]:
    """Ops of single numbers."""
    return frozenset({*cuda.elementwise.KERNELS, *cuda.int_pointwise.KERNELS})


@dataclass(slots=True)
class _Step:
    info: StepInfo
    run: Callable[..., Any]  # of DeviceArrays: one, or a tuple where there are several results
    reads: list[int]
    writes: list[int]
    dead: list[int] = field(default_factory=list)  # values that no later step reads

    def apply(self, values: list[Any]) -> None:
        """Compute results from the values, and put them there."""
        out = self.run(*[values[i] for i in self.reads])
        for place, one in zip(self.writes, out if isinstance(out, tuple) else (out,), strict=True):
            values[place] = one


def on_processor(graph: InternalGraph) -> InternalGraph:
    """A copy of a graph of ops whose constants and values are on the processor, as passes need them."""
    made = graph.clone()
    move(made, "cpu0")
    return made


def prepared(source: InternalGraph) -> InternalGraph:
    """The graph that steps are made from: optimised and fused, as for the processor."""
    graph, exact = on_processor(source), is_exact(source)
    if not exact:
        name_activations(graph)
    run_passes(graph)
    if not exact:
        name_activations(graph)
        fold_views(graph)
    name_norms(graph, exact=exact)
    fuse(graph, exact=exact)
    fuse_chains(graph, cuda.elementwise.usable)
    graph.lint()
    return graph


def _moving(expr: Apply) -> list[int]:
    """The operands that kernels of plans take channels-last: of convolutions, all but the weight, computed or not."""
    if expr.op in cuda.convolution.LAST:
        return [i for i, n in enumerate(expr.inputs) if n.spec.ndim == 4 and i != 1]
    return [i for i, n in enumerate(expr.inputs) if n.spec.ndim == 4 and not isinstance(n.expr, Constant)]


def _run_of(kernel: Kernel) -> Callable[..., Any]:
    assert kernel.run is not None, kernel.name  # CUDA kernels are functions of arrays
    return kernel.run


class _Builder:
    """Collects steps and the numbers of the values that they read and write."""

    def __init__(self, graph: InternalGraph, device: str, *, tune: bool) -> None:
        self.device, self.runtime = device, runtime_of(device)
        self.tuner = GpuTuner(self.runtime) if tune else None
        self.steps: list[_Step] = []
        self.values: list[DeviceArray | None] = []  # constants are there, others come when they are computed
        # value, whether channels-last (or the channels in memory, where these are more than it has) -> number
        self.place: dict[tuple[int, int], int] = {}
        self.inputs = [self._put(node, last=False) for node in graph.inputs]
        for expr in graph.exprs():
            if isinstance(expr, Apply):
                self._add(expr)
        self.outputs = [self._get(node, last=False) for node in graph.outputs]
        self._drop()
        if self.tuner:
            self.tuner.keep()

    def _new(self, array: DeviceArray | None = None) -> int:
        self.values.append(array)
        return len(self.values) - 1

    def _put(self, node: TensorNode, *, last: bool) -> int:
        self.place[id(node), last] = self._new()
        return self.place[id(node), last]

    def _lies_last(self, node: TensorNode) -> bool:
        return (id(node), True) in self.place

    def _get(self, node: TensorNode, *, last: bool) -> int:
        """The number of a value in a layout; a step turns it where it lies in the other one."""
        key = (id(node), last)
        if key not in self.place:
            if isinstance(node.expr, Constant):
                array = self.runtime.upload(np.ascontiguousarray(node.expr.value.numpy()))
                self.place[key] = self._new(cuda.int_layout.to_last(array) if last else array)
            else:
                source = self.place[id(node), not last]
                turn = cuda.int_layout.to_last if last else cuda.int_layout.to_first
                info = StepInfo("to_channels_last" if last else "to_rows", node.name, "cuda_turn", "")
                self.place[key] = self._new()
                self.steps.append(_Step(info, turn, [source], [self.place[key]]))
        return self.place[key]

    def _pitched(self, node: TensorNode, pitch: int) -> int:
        """The number of a channels-last value with as many channels in memory as its layer likes to read."""
        channels = node.spec.shape[1]
        if pitch == channels or (id(node), False) not in self.place:
            return self._get(node, last=True)
        key = (id(node), pitch)
        if key not in self.place:
            source = self._get(node, last=False)
            self.place[key] = self._new()
            info = StepInfo("to_channels_last", node.name, "cuda_turn", "")
            turn = partial(cuda.int_layout.to_last, pitch=pitch)
            self.steps.append(_Step(info, turn, [source], [self.place[key]]))
        return self.place[key]

    def _problem(self, expr: Apply) -> Problem:
        def here(nodes: Iterable[Any]) -> list[TensorSpec]:
            return [TensorSpec(n.spec.shape, n.spec.dtype, self.device) for n in nodes]

        return Problem(expr.op, here(expr.inputs), here(expr.outputs), expr.attrs)

    def _add(self, expr: Apply) -> None:
        problem = self._problem(expr)
        moving = _moving(expr)
        kernel = last_kernel(problem, moving)
        usable = family(expr.op).candidates(problem)
        follows = expr.op in FOLLOWING and usable and not prefers_last(expr.inputs, self._lies_last)
        if kernel is not None and not follows:
            reads = [self._get(n, last=i in moving) for i, n in enumerate(expr.inputs)]
            layer, name = partial(_run_of(kernel), problem), kernel.name
            if expr.op == "qconv2d":
                reads[0] = self._pitched(expr.inputs[0], cuda.int_layers.useful_pitch(problem))
                if (tile := self.tuner.tile(problem) if self.tuner else None) is not None:
                    layer, name = partial(layer, tile=tile), f"{name} {tile.name}"
            self._step(expr, problem, name, layer, reads, last=True)
            return
        if self._turned(expr, problem):
            return
        reads = [self._get(n, last=False) for n in expr.inputs]
        name = usable[0].name if usable else "in float32" if expr.record.widens(problem.inputs) else "processor"
        run = runner(expr.record, problem, len(problem.outputs) == 1)
        self._step(expr, problem, name, run, reads, last=False)

    def _turned(self, expr: Apply, problem: Problem) -> bool:
        """Add a step on channels-last values, where most operands lie so and the op allows it."""
        if not prefers_last(expr.inputs, self._lies_last):
            return False
        turned = turned_op(expr, problem, pointwise())
        kernel = None if turned is None else next(iter(family(expr.op).candidates(turned.problem)), None)
        if turned is None or kernel is None:
            return False
        reads = []
        for i, node in enumerate(expr.inputs):
            if i in turned.constants:
                array = turned.constants[i](node.expr.value.numpy())
                reads.append(self._new(self.runtime.upload(array)))
            else:
                constant = isinstance(node.expr, Constant)
                reads.append(self._get(node, last=turnable(node.spec) and node.spec.size != 1 and not constant))
        self._step(expr, turned.problem, kernel.name, partial(_run_of(kernel), turned.problem), reads, last=True)
        return True

    def _step(self, expr: Apply, problem: Problem, kernel: str, run: Any, reads: list[int], *, last: bool) -> None:
        info = StepInfo(expr.op, expr.name, kernel, str(expr.meta.get("module", "")))
        if kernel == "processor":
            info.rejected = [row for row in family(expr.op).explain(problem) if row[1] != "usable"]
        writes = [self._put(node, last=last and node.spec.ndim == 4) for node in expr.outputs]
        self.steps.append(_Step(info, run, reads, writes))
        for node in expr.outputs:
            if last and node.spec.ndim == 4 and one_layout(node.spec):  # the same bytes in rows
                self._also_rows(node)

    def _also_rows(self, node: TensorNode) -> None:
        source, target = self.place[id(node), True], self._put(node, last=False)
        shape = node.spec.shape
        info = StepInfo("view", node.name, "view", "")
        self.steps.append(_Step(info, lambda x: x.reshape(shape), [source], [target]))

    def given(self, arrays: Sequence[DeviceArray]) -> list[Any]:
        """The values at the beginning of a run: constants and inputs."""
        values: list[Any] = list(self.values)
        for place, array in zip(self.inputs, arrays, strict=True):
            values[place] = array
        return values

    def _drop(self) -> None:
        """Note where values are read last; steps whose results nobody reads are left out."""
        needed, kept = {*self.outputs}, []
        for step in reversed(self.steps):
            if needed.isdisjoint(step.writes):
                continue
            step.dead = [i for i in {*step.reads, *step.writes} if i not in needed and self.values[i] is None]
            needed.update(step.reads)
            kept.append(step)
        self.steps = kept[::-1]


class GpuPlan:
    """A network compiled for a GPU: call it with tensors of the GPU and get such, or with arrays and get arrays.

    The first call records the launches as one CUDA graph, which all calls replay; their memory belongs to the plan.
    Where a step waits for the GPU, steps run one by one (`describe` says so). Shapes are those of the graph. Results of
    calls have memory of their own. `tune` measures the tiles of integer convolutions, or takes those that won before.
    """

    def __init__(self, source: InternalGraph, *, device: str = "gpu0", tune: bool = False) -> None:
        self.source, self.device, self._tune = source, device, tune
        self.graph = prepared(source)
        self._builder = _Builder(self.graph, device, tune=tune)
        self._recording: Recording | None = None
        self._given: list[DeviceArray] = []  # inputs of the recording
        self._apart = ""  # why steps run one by one
        self._lock = threading.Lock()  # calls share the memory of the recording

    def __repr__(self) -> str:
        return title(self, counted(len(self.steps), "step"), self.device)

    @property
    def steps(self) -> list[StepInfo]:
        """What runs, in order."""
        return [s.info for s in self._builder.steps]

    @property
    def arena_bytes(self) -> int:
        """Memory of values between steps that the plan keeps; 0 before the first call."""
        return 0 if self._recording is None else self._recording.nbytes

    def _arrays(self, inputs: Sequence[Any]) -> list[DeviceArray]:
        nodes, found = self.graph.inputs, []
        if len(inputs) != len(nodes):
            raise ShapeError(f"plan of {self.graph.name!r} takes {counted(len(nodes), 'input')}, got {len(inputs)}")
        for node, value in zip(nodes, inputs, strict=True):
            array = value._storage() if isinstance(value, Tensor) else value
            array = array if isinstance(array, DeviceArray) else np.asarray(array)
            if array.shape != node.spec.shape:
                remedy = "; open_batch gives a network for any batch" if array.shape[1:] == node.spec.shape[1:] else ""
                raise ShapeError(
                    f"plan: input {node.name!r} has shape {array.shape}; expected {node.spec.shape}{remedy}"
                )
            if array.dtype != (dtype := storage_of(node.dtype)):
                raise DTypeError(f"plan: input {node.name!r} is {array.dtype}; expected {dtype}; use .astype")
            if isinstance(array, DeviceArray) and array.runtime.name != self.device:
                raise DeviceError(
                    f"plan: input {node.name!r} is on {array.runtime.name}; expected {self.device}; copy with .to"
                )
            found.append(array if isinstance(array, DeviceArray) else self._builder.runtime.upload(array))
        return found

    def _run(self, arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        """All steps, one by one."""
        values = self._builder.given(arrays)
        for step in self._builder.steps:
            step.apply(values)
            for place in step.dead:
                values[place] = None
        return [values[i] for i in self._builder.outputs]

    def _record(self, arrays: Sequence[DeviceArray]) -> None:
        runtime = self._builder.runtime
        given = [runtime.duplicate(array) for array in arrays]
        try:
            self._recording = runtime.record(lambda: self._run(given))
            self._given = given
            self._apart = "" if self._recording else f"{runtime.name} records no launches"
        except DeviceError as exc:
            if "recorded" not in str(exc):
                raise
            self._apart = str(exc)

    def _results(self, arrays: Sequence[DeviceArray]) -> list[DeviceArray]:
        runtime = self._builder.runtime
        if self._recording is None and not self._apart:
            self._record(arrays)
        if self._recording is None:
            outside = {id(a) for a in (*arrays, *self._builder.values) if a is not None}
            return [runtime.duplicate(a) if id(a) in outside else a for a in self._run(arrays)]
        for place, array in zip(self._given, arrays, strict=True):
            if array.size:
                runtime.copy_within(place, array)
        self._recording.replay()
        return [*map(runtime.duplicate, self._recording.outputs)]

    def __call__(self, *inputs: Any) -> list[Any]:
        """Run on tensors of the GPU, or on arrays (4-D: NCHW); returns the outputs of the same kind.

        Raises ShapeError, DTypeError or DeviceError for inputs of another shape, dtype or device.
        """
        arrays = self._arrays(inputs)
        with self._lock:
            found = self._results(arrays)
        if not any(isinstance(x, Tensor) for x in inputs):
            return [array.numpy() for array in found]
        nodes = self.graph.outputs
        return [Tensor._wrap(a, n.spec.dtype, self.device) for a, n in zip(found, nodes, strict=True)]

    def __reduce__(self) -> Any:
        return partial(GpuPlan, device=self.device, tune=self._tune), (self.source,)

    def profile(self, *inputs: Any, repeat: int = 20) -> list[tuple[StepInfo, float]]:
        """Median seconds of the GPU for every step over `repeat` runs, one by one."""
        arrays, runtime = self._arrays(inputs), self._builder.runtime
        times: list[list[float]] = []
        for _ in range(repeat + 1):
            values = self._builder.given(arrays)
            times.append([runtime.milliseconds(partial(step.apply, values)) / 1e3 for step in self._builder.steps])
        return list(zip(self.steps, np.median(times[1:], axis=0).tolist(), strict=True))

    def save(self, path: str | Path) -> None:
        """Write the op-level graph and its weights, as plans of the processor do."""
        files.save(self.source, path)

    def describe(self) -> str:
        """One line per step: op, value, kernel, module; and why the processor computes it, where it does."""
        how = f"one by one: {self._apart}" if self._apart else f"arena {counted(self.arena_bytes, 'byte')}"
        lines = [f"plan of {self.graph.name} on {self.device}: {counted(len(self.steps), 'step')}, {how}"]
        for s in self.steps:
            why = "; ".join(f"not {name}: {reason}" for name, reason in s.rejected)
            lines.append(f"  {s.op:18} {s.name:32} {s.kernel:24} {s.module} {why}".rstrip())
        return "\n".join(lines)
