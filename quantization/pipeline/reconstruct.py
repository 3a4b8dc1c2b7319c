"""Block reconstruction: the weights and scales of a block learn, so that it gives what the float network gives.

Blocks end at nodes that all paths pass. They are taken in turn: a block gets what the integer blocks before it give,
and learns the rounding of its weights (the variables of AdaRound), the scales of its results, and its biases, by the
squared error of what it gives (BRECQ, Li et al. 2021). Half of what is rounded in it, its input included, stays
unrounded, drawn anew in every step, so that weights suit more than the rounding of these samples (QDrop, Wei et al.
2022). Both papers start from real weights; here weights start near the integers that they have, between these and the
ones behind the real weight. Samples that did not teach judge each block: one that does not give less error on them
stays as it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from megengine.autodiff import GradManager
from megengine.core.dtype import QuantizedDType, quantized
from megengine.core.errors import FileFormatError, OptionError
from megengine.dispatch import apply
from megengine.optimizer import Adam
from megengine.quantization.pipeline.adaround import SoftRounding
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.distill import has_gradient, lone_nodes
from megengine.quantization.pipeline.freeze import Frozen, real_weight
from megengine.quantization.pipeline.sequential import MEMORY
from megengine.quantization.pipeline.straight_through import RoundedValue, Slope
from megengine.quantization.pipeline.student import Student
from megengine.quantization.ranges import Batch, Progress, as_tensors, sample_number
from megengine.serialization import load, save
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.interpret import run_op
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

LAYERS = 3  # of a block, at least: those of an inverted residual
HELD_OUT = 5  # every fifth sample judges
LEAST = 2 * HELD_OUT  # samples
STEP = 4  # samples of one step
DROPPED = 0.5  # of the values that are rounded
START = 0.5  # of the way from the integer of a weight to its real value
GAIN = 0.98  # of the error on samples that judge, at most, for a block to change
ROUNDED = 0.3  # of the error of rounding at random, that the integers at the start leave
RATES = {"scales": 0.004, "biases": 0.005}  # of Adam, in the units of `Student`
_SLOPE = Slope.of("tqt")


@dataclass(frozen=True, slots=True)
class Block:
    """Ops between two nodes that all paths pass, and the layers among them whose weights learn."""

    first: TensorNode
    last: TensorNode
    exprs: tuple[Apply, ...]
    layers: tuple[Apply, ...]


def blocks_of(graph: InternalGraph, annotation: Annotation, student: Student) -> list[Block]:
    """The blocks of a network of one input, in their order; the last one gives the first result."""
    if len(graph.inputs) != 1:
        return []
    ends = {id(n): n for n in lone_nodes(graph, annotation.edges)} | {id(graph.outputs[0]): graph.outputs[0]}
    found, exprs, first = [], [], graph.inputs[0]
    for expr in graph.exprs():
        if not isinstance(expr, Apply):
            continue
        exprs.append(expr)
        layers = tuple(e for e in exprs if e.outputs[0].name in student.weights)
        last = ends.get(id(expr.outputs[0]))
        if last is not None and (len(layers) >= LAYERS or last is graph.outputs[0]):
            found.append(Block(first, last, tuple(exprs), layers))
            exprs, first = [], last
    return found


def reconstruct(
    graph: InternalGraph,
    annotation: Annotation,
    frozen: Frozen,
    samples: Sequence[Batch],
    *,
    steps: int,
    int_bias: bool = False,
    state: Path | None = None,
    progress: Progress | None = None,
) -> Frozen:
    """Dtypes, integers and biases after every block has learnt.

    Fewer than `LEAST` samples, networks of several inputs or with an op that has no gradient, and blocks whose values
    take more memory than `MEMORY`, are left as they are.

    Args:
        graph: the float network, canonical.
        samples: in an order that their values give.
        steps: of Adam, for each block; each takes `STEP` samples.
        int_bias: biases are whole numbers of steps.
        state: file that is written after every block; an interrupted run goes on from it to the same bits.
        progress: called with ("reconstruction", blocks done, all).

    Raises:
        OptionError: the state is of another network, other data or settings, or no state.
    """
    if len(samples) < LEAST or not has_gradient(graph) or not frozen.weights:
        return frozen
    student = Student(graph, annotation, frozen, int_bias)
    run = _Run(student, samples, steps)
    blocks = blocks_of(graph, annotation, student)
    key = _key(frozen, samples, steps)
    known = _restored(state, key, student) if state is not None and state.exists() else 0
    for number, block in enumerate(blocks):
        run.through(block, learn=number >= known)
        if state is not None and number >= known:
            save({"key": key, "blocks": number + 1, "values": student.values()}, str(state))
        if progress is not None:
            progress("reconstruction", number + 1, len(blocks))
    return student.frozen()


class _Run:
    """The values of all samples in front of the next block: of the float network, and of the one in integers."""

    def __init__(self, student: Student, samples: Sequence[Batch], steps: int) -> None:
        self.student, self.steps, self.number = student, steps, 0
        self.exact = [as_tensors(x, student.graph)[0] for x in samples]
        now = _Rounded(student, student.start)
        self.integer = [now.value(student.graph.inputs[0], x) for x in self.exact]
        held = range(HELD_OUT - 1, len(samples), HELD_OUT)
        self.held, self.teaching = [*held], [i for i in range(len(samples)) if i not in held]

    def through(self, block: Block, *, learn: bool) -> None:
        """Let a block learn, and go on behind it."""
        wanted = [_run(block, x, _Plain()) for x in self.exact]
        size = sum(x.numpy().nbytes for x in (*wanted, *self.exact))
        if learn and block.layers and size <= MEMORY:
            self._learn(block, wanted)
        now = _Rounded(self.student, self.student.frozen())
        self.integer = [_run(block, x, now) for x in self.integer]
        self.exact, self.number = wanted, self.number + 1

    def _error(self, block: Block, wanted: Sequence[Tensor], places: Iterable[int]) -> float:
        now = _Rounded(self.student, self.student.frozen())
        errors = [_run(block, self.integer[i], now).numpy().astype(np.float64) - wanted[i].numpy() for i in places]
        return float(np.mean([np.square(e).mean() for e in errors]))

    def _learn(self, block: Block, wanted: Sequence[Tensor]) -> None:
        student, before = self.student, self.student.values()
        held, start = self._error(block, wanted, self.held), self._error(block, wanted, self.teaching[:STEP])
        if not (held > 0 and start > 0):
            return
        learner = _Learner(student, block, self.steps, start)
        random = np.random.default_rng([1, self.number])
        for _ in range(self.steps):
            learner.step(
                [(self.exact[i], self.integer[i], wanted[i]) for i in random.choice(self.teaching, STEP)], random
            )
        learner.settle()
        if not self._error(block, wanted, self.held) < GAIN * held:
            student.restore(before)


class _Plain:
    """The float network."""

    def operand(self, expr: Apply, at: int) -> Tensor | None:
        """What takes the place of a constant."""
        return None

    def value(self, node: TensorNode, value: Tensor) -> Tensor:
        """What takes the place of a computed value."""
        return value


class _Rounded(_Plain):
    """The network with all numbers decided."""

    def __init__(self, student: Student, frozen: Frozen) -> None:
        self.frozen, self.student = frozen, student

    def operand(self, expr: Apply, at: int) -> Tensor | None:
        name = expr.outputs[0].name
        if at == 1 and name in self.frozen.weights:
            return Tensor(np.ascontiguousarray(real_weight(expr, self.frozen.weights[name])))
        bias = self.frozen.biases.get((name, at))
        return None if bias is None else Tensor(bias)

    def value(self, node: TensorNode, value: Tensor) -> Tensor:
        dtype = self.frozen.edges.get(node.name)
        return value if dtype is None else apply("fake_quant", value, dtype=dtype)


class _Learner(_Plain):
    """A block on the tape."""

    def __init__(self, student: Student, block: Block, steps: int, error: float) -> None:
        self.student, self.block = student, block
        names = {e.outputs[0].name for e in block.exprs}
        self.soft = {e.outputs[0].name: _soft(student, e, steps) for e in block.layers}
        self.weights = {name: Parameter(one.soft() * self._steps_of(name)) for name, one in self.soft.items()}
        self.edges = {source: one for source, one in student.edges.items() if source in names}
        self.biases = {place: one for place, one in student.biases.items() if place[0] in names}
        groups = [
            {"params": [*kind.values()], "lr": rate}
            for kind, rate in ((self.edges, RATES["scales"]), (self.biases, RATES["biases"]))
            if kind
        ]
        self.optimizer = Adam(groups, lr=0.0) if groups else None
        parameters = [*self.weights.values(), *self.edges.values(), *self.biases.values()]
        self.manager, self.random = GradManager().attach(parameters), np.random.default_rng(0)
        self.unit = 1 / error
        # so that the error of a weight that is rounded at random counts 1, as the regularizer has it
        self.weight_unit = ROUNDED * sum(w.size for w in self.weights.values())

    def _steps_of(self, name: str) -> np.ndarray:
        return _steps(self.student.start.weights[name].dtype, self.student.weights[name].ndim)

    def step(self, lessons: Sequence[tuple[Tensor, Tensor, Tensor]], random: np.random.Generator) -> None:
        """One step of all that learns, by samples: their float input, their integer input, what they should give."""
        self.random = random
        for exact, integer, wanted in lessons:
            x = self._dropped(integer, exact)
            with self.manager:
                loss = ((_run(self.block, x, self) - wanted) ** 2).mean() * (self.unit / len(lessons))
                self.manager.backward(loss)
        for name, one in self.soft.items():
            steps, parameter = self._steps_of(name), self.weights[name]
            if parameter.grad is not None:
                one.learn(parameter.grad.numpy() * steps * np.float32(self.weight_unit))
            parameter._reset(Tensor(one.soft() * steps))
            parameter.grad = None
        if self.optimizer is not None:
            self.optimizer.step().clear_grad()

    def settle(self) -> None:
        """Weights become integers."""
        for name, one in self.soft.items():
            self.student.weights[name]._reset(Tensor(one.integers().astype(np.float32)))
        self.student.bound()

    def operand(self, expr: Apply, at: int) -> Tensor | None:
        name, student = expr.outputs[0].name, self.student
        if at == 1 and name in self.weights:
            return self.weights[name]
        if (change := self.biases.get((name, at))) is not None:
            return change * Tensor(student.units[name, at]) + Tensor(student.start.biases[name, at])
        return _Rounded(student, student.start).operand(expr, at)

    def value(self, node: TensorNode, value: Tensor) -> Tensor:
        before = self.student.start.edges.get(node.name)
        if before is None:
            return value
        change = self.edges.get(self.student.sources.get(node.name, node.name))
        if change is None:
            return self._dropped(apply("fake_quant", value, dtype=before), value)
        scale = np.asarray(before.scale, np.float32) * np.exp2(change.numpy())
        stored = apply("quantize", value.detach(), dtype=quantized(before.name, scale, before.zero_point, before.axis))
        return self._dropped(RoundedValue(stored, _SLOPE)(value, Student._scale(before, change)), value)

    def _dropped(self, rounded: Tensor, real: Tensor) -> Tensor:
        mask = (self.random.random(real.shape) >= DROPPED).astype(np.float32)
        return rounded * Tensor(mask) + real * Tensor(1 - mask)


def _soft(student: Student, layer: Apply, steps: int) -> SoftRounding:
    """The rounding of a weight, near its integers."""
    weight = student.start.weights[layer.outputs[0].name]
    q, dtype = weight.values.astype(np.float32), weight.dtype
    real = layer.inputs[1].expr.value.numpy() / _steps(dtype, q.ndim)
    return SoftRounding(q + np.float32(START) * np.clip(real - q, -1, 1), dtype.qmin, dtype.qmax, steps)


def _steps(dtype: QuantizedDType, ndim: int) -> np.ndarray:
    """The scale of a weight, as it multiplies its integers."""
    scale = np.asarray(dtype.scale, np.float32)
    return scale if dtype.axis is None else scale.reshape([-1 if i == dtype.axis % ndim else 1 for i in range(ndim)])


def _run(block: Block, x: Tensor, how: _Plain) -> Tensor:
    values = {id(block.first): x}
    for expr in block.exprs:
        operands = []
        for at, node in enumerate(expr.inputs):
            given = how.operand(expr, at) if isinstance(node.expr, Constant) else None
            operands.append(_value(values, node) if given is None else given)
        for node, value in zip(expr.outputs, run_op(expr, operands, {}), strict=True):
            values[id(node)] = how.value(node, value)
    return values[id(block.last)]


def _value(values: dict[int, Tensor], node: TensorNode) -> Tensor:
    made = node.expr
    return made.value if isinstance(made, Constant) else values[id(node)]


def _restored(path: Path, key: str, student: Student) -> int:
    """How many blocks have learnt already, which the student then holds."""
    try:
        held = load(str(path))
        if held["key"] == key:
            student.restore(held["values"])
            return int(held["blocks"])
    except (FileFormatError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise OptionError(f"reconstruction: {str(path)!r} is no state of it ({error}); remove it") from error
    raise OptionError(
        f"reconstruction: {str(path)!r} is of another network, other data or settings; remove it, or name another file"
    )


def _key(frozen: Frozen, samples: Sequence[Batch], steps: int) -> str:
    settings = (steps, RATES, STEP, DROPPED, START, [sample_number(x) for x in samples], frozen.edges)
    digest = hashlib.sha256(repr(settings).encode())
    for name, weight in frozen.weights.items():
        digest.update(f"{name} {weight.dtype} {weight.values.shape}".encode())
        digest.update(np.ascontiguousarray(weight.values).tobytes())
    return digest.hexdigest()
