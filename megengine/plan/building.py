"""The steps of a plan: a kernel per op, packed weights, one arena."""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, storage_of
from megengine.core.spec import TensorSpec
from megengine.dispatch import runner
from megengine.kernels import _core, cpus
from megengine.kernels.int8 import quantize_planes_step
from megengine.kernels.memory import bits
from megengine.kernels.native import to_step
from megengine.kernels.registry import family
from megengine.plan.layouts import Layouts, choices, constants_of, one_layout, problem_of, turned
from megengine.plan.memory import Lifetime, place
from megengine.plan.pictures import Part, parts
from megengine.plan.tables import look_up_joined, looked_up_parts
from megengine.plan.tuning import Tuner
from megengine.traced_module import InternalGraph
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.node import TensorNode


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
    native: Any  # capsule of a native step, or None
    reads: list[int]
    writes: list[int]
    otherwise: Any = None  # a function of the list of its buffers' addresses, for what the native step refuses


def title(plan: Any, *facts: str) -> str:
    """What a plan of any kind shows of itself in one line: its network, the inputs, and facts about it."""
    inputs = ", ".join(f"{n.name} {n.spec}" for n in plan.source.inputs)
    return f"<{type(plan).__name__} of {plan.source.name!r} for {inputs}: {', '.join(facts)}>"


Watch = Callable[[np.ndarray], None]


def _nbytes(spec: TensorSpec) -> int:
    return spec.size * storage_of(spec.dtype).itemsize


def _view(address: int, spec: TensorSpec, *, rows: bool) -> np.ndarray:
    """The buffer at an address in the value's logical shape."""
    dtype = storage_of(spec.dtype)
    if spec.size == 0:
        return np.empty(spec.shape, dtype)
    raw: Any = (ctypes.c_char * _nbytes(spec)).from_address(address)
    if rows or spec.ndim != 4:
        return np.frombuffer(raw, dtype).reshape(spec.shape)
    n, c, h, w = spec.shape
    return np.frombuffer(raw, dtype).reshape(n, h, w, c).transpose(0, 3, 1, 2)


def is_exact(graph: InternalGraph) -> bool:
    """True for a graph with integers, where a float that differs in the last bit may flip a step."""
    return any(isinstance(n.spec.dtype, QuantizedDType) for n in graph.nodes())


def _quantizes(expr: Any, node: TensorNode) -> bool:
    """True for a quantization to 8 bits with one scale of a float32 value that is not an output."""
    if not isinstance(expr, Apply) or not expr.record.quantizes or node.dtype != np.float32 or not node.spec.size:
        return False
    dtype = expr.attrs["dtype"]
    return dtype.axis is None and dtype.storage.itemsize == 1 and not any(n is node for n in node.graph.outputs)


class Builder:
    """Collects steps and buffers, then makes the native plan."""

    def __init__(self, graph: InternalGraph, threads: int, *, tune: bool, inside: Sequence[bool] | None = None) -> None:
        self.graph = graph
        self.tuner = Tuner(threads) if tune else None
        self.threads = threads
        self.steps: list[_Step] = []
        self.specs: list[TensorSpec] = []
        self.exact = is_exact(graph)
        self.layouts = Layouts(graph, exact=self.exact, inside=inside)
        self.buffer_of: dict[tuple[int, bool], int] = {}  # value, whether in rows -> buffer
        self.constants: dict[int, np.ndarray] = {}
        self.inputs: list[int] = []
        self.planar: dict[int, int] = {}  # inputs read as they come, NCHW
        self.outputs: list[int] = []
        self.watched: dict[int, list[Watch]] = {}
        self.parts: dict[int, Part] = {}  # computed picture by picture, by the first op
        self.joined = looked_up_parts(graph, self.layouts)

    def new_buffer(self, spec: TensorSpec) -> int:
        self.specs.append(spec)
        return len(self.specs) - 1

    def build(self) -> None:
        watching = bool(self.watched)
        for node in self.graph.inputs:
            outside = self.new_buffer(node.spec)
            self.inputs.append(outside)
            plain = id(node) not in self.watched and node.spec.ndim == 4 and bool(node.users)
            if plain and all(_quantizes(u, node) for u in node.users):
                self.planar[id(node)] = outside
            else:
                self.buffer_of[id(node), True] = outside
            self._show(node)
        if not watching:
            self.parts = {id(part.exprs[0]): part for part in parts(self.graph, exact=self.exact)}
        done = {id(part) for heads in self.joined.values() for part in heads}  # the ops behind compute them
        for expr in self.graph.exprs():
            if isinstance(expr, Apply) and id(expr) not in done:
                if (part := self.parts.get(id(expr))) is not None and self._each_picture(part):
                    done |= {id(e) for e in part.exprs}
                else:
                    self.add(expr)
            for node in expr.outputs:
                self._show(node)
        if not watching:
            for node in self.graph.outputs:  # a value that is a result already gets a copy
                self.outputs.append(self._result(node))
        if self.tuner:
            self.tuner.keep()

    def _each_picture(self, part: Part) -> bool:
        """A step that runs a plan of one picture for each of a batch; False if there is none without Python."""
        inside = {id(e) for e in part.exprs}
        for join, heads in self.joined.items():  # tables are inside where the op that looks them up is
            if any((id(e) in inside) != (join in inside) for e in heads if e is not None):
                return False
        graph, plans = part.of_one(), []
        in_rows = [(id(n), True) in self.buffer_of for n in part.sources]
        for _ in range(min(self.threads, part.pictures)):
            inner = Builder(graph, 1, tune=self.tuner is not None, inside=in_rows)
            result_rows = inner.build_inside(in_rows)
            if any(s.native is None or s.otherwise is not None for s in inner.steps):
                return False
            plans.append(inner.finish()[0])
        reads = [self.buffer(n, rows=rows) for n, rows in zip(part.sources, in_rows, strict=True)]
        writes = [self.new_buffer(n.spec) for n in part.results]
        module = str(part.exprs[-1].meta.get("module", ""))
        info = StepInfo("each_picture", part.exprs[-1].name, "own_each_picture", module)
        self.steps.append(_Step(info, _core.each_picture_step(plans, part.pictures), reads, writes))
        for node, buffer, rows in zip(part.results, writes, result_rows, strict=True):
            self.give(node, buffer, rows=rows)
        return True

    def build_inside(self, in_rows: Sequence[bool]) -> list[bool]:
        """As part of another plan: which inputs lie in rows; returns which results do."""
        for node, rows in zip(self.graph.inputs, in_rows, strict=True):
            self.inputs.append(self.new_buffer(node.spec))
            self.give(node, self.inputs[-1], rows=rows)
        for expr in self.graph.exprs():
            if isinstance(expr, Apply):
                self.add(expr)
        found = [(id(n), True) in self.buffer_of for n in self.graph.outputs]
        self.outputs += [self.buffer_of[id(n), rows] for n, rows in zip(self.graph.outputs, found, strict=True)]
        if self.tuner:
            self.tuner.keep()
        return found

    def _show(self, node: Any) -> None:
        """A step that gives a watched value to its watchers, where it lies."""
        watchers = self.watched.pop(id(node), None)
        if watchers is None:
            return
        rows = isinstance(node.expr, Constant) or (id(node), True) in self.buffer_of

        def step(addresses: list[int]) -> None:
            value = _view(addresses[0], node.spec, rows=rows)
            for watch in watchers:
                watch(value)

        info = StepInfo("watch", node.name, "python:watch", "")
        self.steps.append(_Step(info, None, [self.buffer(node, rows=rows)], [], step))

    def buffer(self, node: TensorNode, *, rows: bool = True) -> int:
        """The buffer of a value in a layout; a constant gets one when a step reads it at run time."""
        rows = rows or one_layout(node.spec)
        if (id(node), rows) not in self.buffer_of:
            if isinstance(node.expr, Constant):
                value = node.expr.value.numpy()
                made = self.new_buffer(node.spec)
                self.constants[made] = np.ascontiguousarray(value) if rows else to_step(value)
            else:
                made = self._moved(node, self.buffer_of[id(node), not rows], to_rows=rows)
            self.buffer_of[id(node), rows] = made
        return self.buffer_of[id(node), rows]

    def _moved(self, node: TensorNode, source: int, *, to_rows: bool) -> int:
        """A buffer with the value in the other layout."""
        n, c, h, w = node.spec.shape
        target = self.new_buffer(node.spec)
        capsule = _core.layout_step(storage_of(node.spec.dtype).itemsize, n, c, h * w, not to_rows, self.threads)
        name = "to_rows" if to_rows else "to_channels_last"
        self.steps.append(_Step(StepInfo(name, node.name, "own_layout", ""), capsule, [source], [target]))
        return target

    def _result(self, node: TensorNode) -> int:
        """A buffer of its own for an output."""
        if (id(node), True) not in self.buffer_of and not isinstance(node.expr, Constant):
            return self._moved(node, self.buffer_of[id(node), False], to_rows=True)
        source = self.buffer(node)
        if self._is_only_written(source):
            return source
        target = self.new_buffer(node.spec)
        capsule = _core.copy_step(_nbytes(node.spec))
        self.steps.append(_Step(StepInfo("to_result", node.name, "own_layout", ""), capsule, [source], [target]))
        return target

    def _is_only_written(self, buffer: int) -> bool:
        """True if a step may write it where the caller reads it: none reads it, or behind its end."""
        if buffer in self.inputs or buffer in self.constants or buffer in self.outputs:
            return False
        return not any(buffer in s.reads for s in self.steps)

    def give(self, node: TensorNode, buffer: int, *, rows: bool) -> None:
        """Let a value lie in a buffer."""
        self.buffer_of[id(node), rows or one_layout(node.spec)] = buffer

    def add(self, expr: Apply) -> None:
        info = StepInfo(expr.op, expr.name, "reference", str(expr.meta.get("module", "")))
        moved = not isinstance(expr.inputs[0].expr, Constant)
        if moved and expr.record.keeps_order:  # moves nothing: the same bytes in rows
            self.give(expr.output, self.buffer(expr.inputs[0]), rows=True)
        elif id(expr) in self.joined:
            info.kernel = "int8_joined_tables"
            capsule, sources = look_up_joined(expr, self.joined[id(expr)], self.threads)
            reads, target = [self.buffer(node, rows=False) for node in sources], self.new_buffer(expr.output.spec)
            self.give(expr.output, target, rows=False)
            self.steps.append(_Step(info, capsule, reads, [target]))
        elif moved and expr.op == "transpose" and expr.output.spec.ndim == 4:
            self._turn(expr, info)
        elif id(expr.inputs[0]) in self.planar:
            # an NCHW input that is only quantized goes to channels-last in the same pass
            info.kernel = "int8_quantize_planes"
            capsule = quantize_planes_step(expr.inputs[0].spec, expr.attrs["dtype"], self.threads)
            target = self.new_buffer(expr.output.spec)
            self.give(expr.output, target, rows=False)
            self.steps.append(_Step(info, capsule, [self.planar[id(expr.inputs[0])]], [target]))
        else:
            self._compute(expr, info)

    def _turn(self, expr: Apply, info: StepInfo) -> None:
        """A transposition from the layout that its operand has to the one that its result is to have."""
        node, rows = expr.inputs[0], self.layouts.value_in_rows(expr.output)
        source_rows = (id(node), True) in self.buffer_of
        source = self.buffer(node, rows=source_rows)
        problem = turned(expr, source_rows=source_rows, target_rows=rows)
        if problem is None:
            self.give(expr.output, source, rows=rows)
            return
        kernel = next(iter(family(expr.op).for_plan(problem, {})), None)
        if kernel is None:
            self._compute(expr, info)
            return
        target = self.new_buffer(expr.output.spec)
        info.kernel = kernel.name
        self.steps.append(_Step(info, kernel.make_step(problem, {}, self.threads), [source], [target]))
        self.give(expr.output, target, rows=rows)

    def _compute(self, expr: Apply, info: StepInfo) -> None:
        rows = self.layouts.in_rows(expr)
        choice = choices(expr, rows=rows, exact=self.exact)
        outputs = [self.new_buffer(n.spec) for n in expr.outputs]
        if choice is None and not any(n.spec.size for n in expr.outputs):
            info.kernel = "own_nothing"
            self.steps.append(_Step(info, _core.copy_step(0), [outputs[0]], outputs))
            for node, buffer in zip(expr.outputs, outputs, strict=True):
                self.give(node, buffer, rows=rows)
            return
        if choice is None:  # the reference, or an eager kernel, called from Python
            problem = problem_of(expr, rows=False)
            assert problem is not None
            constants = constants_of(expr, problem)
            eager = family(expr.op).select(problem, constants)
            info.kernel = "reference" if eager is None else f"python:{eager.name}"
            moving = [i for i in range(len(expr.inputs)) if i not in constants]
            capsule, reads = None, [self.buffer(expr.inputs[i], rows=rows) for i in moving]
            function = self._reference(expr, moving, rows=rows)
        else:
            problem, constants, usable = choice
            kernel = self.tuner.pick(usable, problem, constants) if self.tuner else usable[0]
            info.kernel = kernel.name
            capsule, reads = kernel.make_step(problem, constants, self.threads), []
            for i, node in enumerate(expr.inputs):
                if i in kernel.packs:
                    continue
                source = self.buffer(node, rows=rows)
                if i == kernel.inplace_input:
                    # bring a residual into the output's memory; left out later where both may share memory
                    copy, step = StepInfo("copy", node.name, "own_copy", ""), _core.copy_step(_nbytes(node.spec))
                    self.steps.append(_Step(copy, step, [source], [outputs[0]]))
                reads.append(outputs[0] if i == kernel.inplace_input else source)
            function = self._reference(expr, range(len(expr.inputs)), rows=rows) if kernel.refuses else None
        info.rejected = [row for row in family(expr.op).explain(problem, step=True) if row[1] != "usable"]
        self.steps.append(_Step(info, capsule, reads, outputs, function))
        for node, buffer in zip(expr.outputs, outputs, strict=True):
            self.give(node, buffer, rows=rows)

    def _reference(self, expr: Apply, moving: Sequence[int], *, rows: bool) -> Callable[[list[int]], None]:
        """The op as a function of the addresses of the inputs `moving`, then of the outputs."""
        problem = problem_of(expr, rows=False)
        assert problem is not None
        constants = constants_of(expr, problem)
        run = runner(expr.record, problem, len(problem.outputs) == 1)

        def step(addresses: list[int]) -> None:
            arrays = dict(constants)
            for i, address in zip(moving, addresses, strict=False):
                arrays[i] = _view(address, problem.inputs[i], rows=rows)
            results = run(*[arrays[i] for i in range(len(problem.inputs))])
            results = results if isinstance(results, tuple) else (results,)
            for result, address, spec in zip(results, addresses[len(moving) :], problem.outputs, strict=True):
                _view(address, spec, rows=rows)[...] = result

        return step

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
        native = _core.Plan(total, min(self.threads, cpus.quota()))
        ids: dict[int, int] = {b: native.add_input(_nbytes(self.specs[b])) for b in self.inputs}
        ids.update({b: native.add_output(_nbytes(self.specs[b])) for b in self.outputs})
        ids.update({b: native.add_constant(bits(a)) for b, a in self.constants.items()})
        ids.update({b: native.add_arena(offset) for b, offset in offsets.items()})
        for s in self.steps:
            buffers = [ids[root(b)] for b in (*s.reads, *s.writes)]
            if s.native is None:
                native.add_call(s.otherwise, buffers)
            else:
                native.add_step(s.native, buffers, s.otherwise)
        return native, total
