"""From an op-level graph to a plan: fusion, a kernel per op, packed weights, one arena, native steps."""

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from megengine.core.dtype import converted, storage_of
from megengine.core.errors import DTypeError, OptionError, ShapeError
from megengine.core.spec import TensorSpec
from megengine.core.text import counted
from megengine.dispatch import get_op, runner
from megengine.kernels import _core
from megengine.kernels.int8 import quantize_planes_step
from megengine.kernels.kernel import StepKernel
from megengine.kernels.native import empty_for_step, to_step
from megengine.kernels.problem import Problem
from megengine.kernels.registry import family
from megengine.plan.fuse import fuse
from megengine.plan.memory import Lifetime, place
from megengine.traced_module import InternalGraph, TracedModule, lower
from megengine.traced_module.formats import native as files
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.passes import run_passes


@dataclass(slots=True)
class StepInfo:
    """One step of a plan, for `describe` and `profile`."""

    op: str
    name: str
    kernel: str
    module: str
    rejected: list[tuple[str, str]] = field(default_factory=list)


@dataclass(slots=True)
class _Step:
    info: StepInfo
    run: Any  # capsule of a native step, or a function of the list of its buffers' addresses
    reads: list[int]
    writes: list[int]
    python: bool = False


def _nbytes(spec: TensorSpec) -> int:
    return spec.size * storage_of(spec.dtype).itemsize


def _view(address: int, spec: TensorSpec) -> np.ndarray:
    """The buffer at an address in the value's logical shape."""
    dtype = storage_of(spec.dtype)
    if spec.size == 0:
        return np.empty(spec.shape, dtype)
    raw: Any = (ctypes.c_char * _nbytes(spec)).from_address(address)
    if spec.ndim != 4:
        return np.frombuffer(raw, dtype).reshape(spec.shape)
    n, c, h, w = spec.shape
    return np.frombuffer(raw, dtype).reshape(n, h, w, c).transpose(0, 3, 1, 2)


def _same_bytes_in_both_layouts(spec: TensorSpec) -> bool:
    return spec.ndim != 4 or spec.shape[1] == 1 or spec.shape[2] * spec.shape[3] == 1


_SPILL = 1 << 22  # bytes; more than a core's second-level cache


def _fastest(kernels: Sequence[StepKernel], problem: Problem, constants: dict[int, np.ndarray]) -> StepKernel | None:
    """The kernel with the least median CPU time on zeros, in rounds of all.

    As in a network, inputs are in the core's caches when a step begins, and weights are not.
    """
    if len(kernels) < 2:
        return next(iter(kernels), None)
    runs = [_trial(kernel, problem, constants) for kernel in kernels]
    spill = np.zeros(_SPILL, np.uint8)
    times: list[list[float]] = [[] for _ in kernels]
    for _ in range(8):
        for (capsule, moving, out), taken in zip(runs, times, strict=True):
            spill += 1
            for array in moving:
                array[...] = 0
            begin = time.process_time()
            _core.run_step(capsule, [*moving, *out])
            taken.append(time.process_time() - begin)
    medians = [float(np.median(taken[1:])) for taken in times]
    return kernels[int(np.argmin(medians))]


def _trial(
    kernel: StepKernel, problem: Problem, constants: dict[int, np.ndarray]
) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """A step of the kernel with zeros for what moves, and room for its outputs."""
    capsule = kernel.make_step(problem, constants, 1)
    out = [np.zeros(empty_for_step(s).shape, storage_of(s.dtype)) for s in problem.outputs]
    moving = []
    for i, spec in enumerate(problem.inputs):
        if i not in kernel.packs:
            zeros = np.zeros(empty_for_step(spec).shape, storage_of(spec.dtype))
            moving.append(out[0] if i == kernel.inplace_input else zeros)
    return capsule, moving, out


def _quantizes(expr: Any, node: TensorNode) -> bool:
    """True for a quantization to 8 bits with one scale of a float32 value that is not an output."""
    if not isinstance(expr, Apply) or expr.op != "quantize" or node.dtype != np.float32 or not node.spec.size:
        return False
    dtype = expr.attrs["dtype"]
    return dtype.axis is None and dtype.storage.itemsize == 1 and not any(n is node for n in node.graph.outputs)


class _Builder:
    """Collects steps and buffers, then makes the native plan."""

    def __init__(self, graph: InternalGraph, threads: int, *, tune: bool) -> None:
        self.graph = graph
        self.tune = tune
        self.threads = threads
        self.steps: list[_Step] = []
        self.specs: list[TensorSpec] = []
        self.buffer_of: dict[int, int] = {}
        self.constants: dict[int, np.ndarray] = {}
        self.inputs: list[int] = []
        self.planar: dict[int, int] = {}  # inputs read as they come, NCHW
        self.outputs: list[int] = []

    def new_buffer(self, spec: TensorSpec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1

    def build(self) -> None:
        for node in self.graph.inputs:
            outside = self.new_buffer(node.spec)
            self.inputs.append(outside)
            if node.spec.ndim == 4 and node.users and all(_quantizes(u, node) for u in node.users):
                self.planar[id(node)] = outside
            else:
                self.buffer_of[id(node)] = self.relayout(outside, node, to_channels_last=True)
        for expr in self.graph.exprs():
            if isinstance(expr, Apply):
                self.add(expr)
        for node in self.graph.outputs:
            self.outputs.append(self.relayout(self.buffer(node), node, to_channels_last=False, force=True))

    def buffer(self, node: TensorNode) -> int:
        """The buffer of a value; a constant gets one when a step reads it at run time."""
        if id(node) not in self.buffer_of:
            assert isinstance(node.expr, Constant)
            index = self.new_buffer(node.spec)
            self.constants[index] = to_step(node.expr.value.numpy())
            self.buffer_of[id(node)] = index
        return self.buffer_of[id(node)]

    def relayout(self, source: int, node: TensorNode, *, to_channels_last: bool, force: bool = False) -> int:
        """A buffer with the value in the other layout; the same buffer where both are the same bytes."""
        spec = node.spec
        if _same_bytes_in_both_layouts(spec) and not force:
            return source
        target = self.new_buffer(spec)
        if _same_bytes_in_both_layouts(spec):
            capsule = _core.copy_step(_nbytes(spec))
        else:
            n, c, h, w = spec.shape
            capsule = _core.layout_step(storage_of(spec.dtype).itemsize, n, c, h * w, to_channels_last)
        name = "to_channels_last" if to_channels_last else "to_result"
        self.steps.append(_Step(StepInfo(name, node.name, "own_layout", ""), capsule, [source], [target]))
        return target

    def add(self, expr: Apply) -> None:
        problem = Problem(expr.op, [n.spec for n in expr.inputs], [n.spec for n in expr.outputs], expr.attrs)
        constants = {i: n.expr.value.numpy() for i, n in enumerate(expr.inputs) if isinstance(n.expr, Constant)}
        usable = family(expr.op).for_plan(problem, constants)
        kernel = _fastest(usable, problem, constants) if self.tune else next(iter(usable), None)
        info = StepInfo(expr.op, expr.name, "reference", str(expr.meta.get("module", "")))
        info.rejected = [row for row in family(expr.op).explain(problem, step=True) if row[1] != "usable"]
        if expr.op == "reshape" and self._reshape(expr, info):
            return
        if id(expr.inputs[0]) in self.planar:
            self._quantize_picture(expr, info)
            return
        outputs = [self.new_buffer(n.spec) for n in expr.outputs]
        for node, buffer in zip(expr.outputs, outputs, strict=True):
            self.buffer_of[id(node)] = buffer
        if kernel is None:
            self._python(expr, problem, constants, info, outputs)
            return
        info.kernel = kernel.name
        capsule = kernel.make_step(problem, constants, self.threads)
        reads = []
        for i, node in enumerate(expr.inputs):
            if i in kernel.packs:
                continue
            if i == kernel.inplace_input:
                # bring a residual into the output's memory; left out later where source and target may share memory
                copy, step = StepInfo("copy", node.name, "own_copy", ""), _core.copy_step(_nbytes(node.spec))
                self.steps.append(_Step(copy, step, [self.buffer(node)], [outputs[0]]))
            reads.append(outputs[0] if i == kernel.inplace_input else self.buffer(node))
        self.steps.append(_Step(info, capsule, reads, outputs))

    def _quantize_picture(self, expr: Apply, info: StepInfo) -> None:
        """An NCHW input that is only quantized goes to channels-last in the same pass."""
        info.kernel = "int8_quantize_planes"
        capsule = quantize_planes_step(expr.inputs[0].spec, expr.attrs["dtype"], self.threads)
        target = self.new_buffer(expr.output.spec)
        self.buffer_of[id(expr.output)] = target
        self.steps.append(_Step(info, capsule, [self.planar[id(expr.inputs[0])]], [target]))

    def _reshape(self, expr: Apply, info: StepInfo) -> bool:
        """A reshape moves nothing: relayout around one shared buffer."""
        node, out = expr.inputs[0], expr.output
        if isinstance(node.expr, Constant):
            return False
        plain = self.relayout(self.buffer(node), node, to_channels_last=False)
        if _same_bytes_in_both_layouts(out.spec):
            self.buffer_of[id(out)] = plain
        else:
            self.buffer_of[id(out)] = self.relayout(plain, out, to_channels_last=True)
        return True

    def _python(
        self, expr: Apply, problem: Problem, constants: dict[int, np.ndarray], info: StepInfo, outputs: list[int]
    ) -> None:
        op = get_op(expr.op)
        run = runner(op, problem, len(problem.outputs) == 1)
        eager = family(expr.op).select(problem, constants)
        info.kernel = "reference" if eager is None else f"python:{eager.name}"
        moving = [i for i in range(len(expr.inputs)) if i not in constants]

        def step(addresses: list[int]) -> None:
            arrays = dict(constants)
            for i, address in zip(moving, addresses, strict=False):
                arrays[i] = _view(address, problem.inputs[i])
            results = run(*[arrays[i] for i in range(len(problem.inputs))])
            results = results if isinstance(results, tuple) else (results,)
            for result, address, spec in zip(results, addresses[len(moving) :], problem.outputs, strict=True):
                _view(address, spec)[...] = result

        reads = [self.buffer(expr.inputs[i]) for i in moving]
        self.steps.append(_Step(info, step, reads, outputs, python=True))

    # ------------------------------------------------------------ memory

    def share_residuals(self) -> dict[int, int]:
        """Buffer -> buffer whose memory it takes: copies of residuals that nobody needs any more are left out."""
        last_read = {b: i for i, s in enumerate(self.steps) for b in s.reads}
        fixed = {*self.inputs, *self.outputs, *self.constants}
        shared: dict[int, int] = {}
        kept = []
        for i, s in enumerate(self.steps):
            if s.info.op == "copy":
                source, target = s.reads[0], s.writes[0]
                while source in shared:
                    source = shared[source]
                same_size = _nbytes(self.specs[source]) == _nbytes(self.specs[target])
                if last_read[s.reads[0]] == i and same_size and source not in fixed and target not in fixed:
                    shared[target] = source
                    continue
            kept.append(s)
        self.steps = kept
        return shared

    def finish(self) -> tuple[Any, int]:
        """The native plan and the bytes of its arena."""
        shared = self.share_residuals()

        def root(buffer: int) -> int:
            while buffer in shared:
                buffer = shared[buffer]
            return buffer

        lifetimes: dict[int, Lifetime] = {}
        outside = {*self.inputs, *self.outputs, *self.constants}
        for i, s in enumerate(self.steps):
            for b in map(root, (*s.reads, *s.writes)):
                if b not in outside:
                    first = lifetimes[b].first if b in lifetimes else i
                    size = max(_nbytes(self.specs[b]), lifetimes[b].size if b in lifetimes else 0)
                    lifetimes[b] = Lifetime(size, first, i)
        offsets, total = place(lifetimes)
        native = _core.Plan(total, self.threads)
        ids: dict[int, int] = {b: native.add_input(_nbytes(self.specs[b])) for b in self.inputs}
        ids.update({b: native.add_output(_nbytes(self.specs[b])) for b in self.outputs})
        ids.update({b: native.add_constant(a) for b, a in self.constants.items()})
        ids.update({b: native.add_arena(offset) for b, offset in offsets.items()})
        for s in self.steps:
            add = native.add_call if s.python else native.add_step
            add(s.run, [ids[root(b)] for b in (*s.reads, *s.writes)])
        return native, total


class Plan:
    """A compiled network: call it with arrays, get arrays. Shapes are those of the graph.

    Runs without Python and without the GIL, except steps that `describe` lists as "reference" or "python:" and a
    kernel.
    """

    def __init__(self, source: InternalGraph, *, threads: int = 1, tune: bool = False) -> None:
        self.source = source  # what `save` writes; `graph` is what the steps were made from
        self.graph = graph = source.clone()
        self.threads = threads
        run_passes(graph)
        fuse(graph)
        graph.lint()
        self._builder = builder = _Builder(graph, threads, tune=tune)
        builder.build()
        self._native, self.arena_bytes = builder.finish()

    @property
    def steps(self) -> list[StepInfo]:
        """What runs, in order."""
        return [s.info for s in self._builder.steps]

    def _arrays(self, inputs: Sequence[Any]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        nodes = self.graph.inputs
        if len(inputs) != len(nodes):
            raise ShapeError(f"plan of {self.graph.name!r} takes {counted(len(nodes), 'input')}, got {len(inputs)}")
        arrays = []
        for node, value in zip(nodes, inputs, strict=True):
            array, dtype = np.asarray(value), storage_of(node.dtype)
            if array.shape != node.shape:
                raise ShapeError(f"plan: input {node.name!r} has shape {array.shape}; expected {node.shape}")
            if array.dtype != dtype and array.dtype.kind in "iu" and dtype.kind in "iu":
                made = converted(array, dtype)  # integers of another width, where all values fit
                array = array if made is None else made
            if array.dtype != dtype:
                raise DTypeError(f"plan: input {node.name!r} is {array.dtype}; expected {dtype}; use .astype")
            arrays.append(np.ascontiguousarray(array))
        return arrays, [np.empty(n.shape, storage_of(n.dtype)) for n in self.graph.outputs]

    def __call__(self, *inputs: Any) -> list[np.ndarray]:
        """Run on arrays (4-D: NCHW); returns the outputs."""
        arrays, outputs = self._arrays(inputs)
        self._native.run(arrays, outputs)
        return outputs

    def profile(self, *inputs: Any, repeat: int = 20) -> list[tuple[StepInfo, float]]:
        """Median CPU seconds of every step over `repeat` runs."""
        arrays, outputs = self._arrays(inputs)
        times = np.array([self._native.profile(arrays, outputs) for _ in range(repeat)])
        return list(zip(self.steps, np.median(times, axis=0).tolist(), strict=True))

    def save(self, path: str | Path) -> None:
        """Write the op-level graph and its unpacked weights; fusion, layout and kernels are chosen at `load`.

        Raises:
            WriteError: the path cannot be written.
        """
        files.save(self.source, path)

    def describe(self) -> str:
        """One line per step: op, value, kernel, module, and why better kernels were rejected."""
        lines = [
            f"plan of {self.graph.name}: {counted(len(self.steps), 'step')}, arena {counted(self.arena_bytes, 'byte')}"
        ]
        for s in self.steps:
            why = "; ".join(f"not {name}: {reason}" for name, reason in s.rejected) if s.kernel == "reference" else ""
            lines.append(f"  {s.op:18} {s.name:32} {s.kernel:24} {s.module} {why}".rstrip())
        return "\n".join(lines)


def compile(model: TracedModule | InternalGraph, *, threads: int = 1, tune: bool = False) -> Plan:
    """Compile a float or integer model for the shapes it was captured with.

    Float graphs are fused (batch norm, bias, residual, activation); integer arithmetic is never changed.
    `tune` times the usable kernels of every step on this machine; integer results do not depend on which one wins.
    """
    if threads < 1:
        raise OptionError(f"plan: threads is {threads}; expected at least 1")
    return Plan(lower(model).graph, threads=threads, tune=tune)


def load(path: str | Path, *, threads: int = 1, tune: bool = False) -> Plan:
    """Read a graph that `Plan.save` (or `traced_module.files.save`) wrote, and compile it for this machine.

    Raises:
        FileFormatError: no such file, damaged, or not of this format.
    """
    return compile(files.load(path), threads=threads, tune=tune)
