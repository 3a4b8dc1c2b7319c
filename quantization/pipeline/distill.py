"""Distillation without labels: scales, biases and weights are trained until the integers follow the float network.

The float network is the teacher. The integer network should show its results, and its values at cuts, the nodes that
all paths pass: outputs of blocks, as in BRECQ (Li et al. 2021), but with all blocks trained together. Gradients pass
straight through rounding; scales are learnt as logarithms (TQT, Jain et al. 2020), weights from the integers that they
have. A part of the samples is held out: the network with the best score on them is kept, that of the start included,
unless its gain over the start may be chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from megengine.autodiff import GradManager
from megengine.core.dtype import is_float
from megengine.core.errors import FileFormatError, OptionError
from megengine.dispatch import NoRule, ZeroGradient
from megengine.optimizer import Adam
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.freeze import Frozen
from megengine.quantization.pipeline.sequential import drawn
from megengine.quantization.pipeline.student import Student
from megengine.quantization.pipeline.training_run import run_watched
from megengine.quantization.pipeline.varied import takes_pictures, varied, with_variety
from megengine.quantization.ranges import Batch, Progress, as_tensors, sample_number
from megengine.serialization import load, save
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

HELD_OUT = 5  # every fifth sample is scored, the others train
LEAST = 2 * HELD_OUT  # samples
CERTAIN = 2.0  # standard errors by which the gain on the samples held out exceeds 0
CUTS = 8  # at most
VALUES = 64 << 20  # of the teacher at the cuts, in all samples, at most
STEP = 4  # samples of one step
RATES = {"weights": 0.03, "biases": 0.0017, "scales": 0.002}  # of Adam, in the units of `Student`


@dataclass(frozen=True, slots=True)
class Lesson:
    """A sample, and what the float network shows for it: its float results, and its values at the cuts."""

    sample: Batch
    results: list[np.ndarray]
    values: dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Best:
    """The best score so far, and the values of the parameters that have it."""

    score: float
    values: list[np.ndarray]


def distill(
    graph: InternalGraph,
    annotation: Annotation,
    frozen: Frozen,
    data: Iterable[Any],
    *,
    epochs: int,
    int_bias: bool = False,
    vary: bool = False,
    state: Path | None = None,
    progress: Progress | None = None,
) -> Frozen:
    """Dtypes, integers and biases after training, or `frozen` if none scored better on the samples held out.

    The order of the data makes no difference. Fewer than `LEAST` samples, and networks with an op that has no
    gradient, are left as they are.

    Args:
        graph: the float network, canonical.
        data: inputs; of many those that `drawn` takes.
        epochs: passes over the samples.
        int_bias: biases are whole numbers of steps.
        vary: half of the samples that train are shown in less contrast, all that are held out in both.
        state: file that keeps the training after each pass; an interrupted one goes on from it to the same bits.
        progress: called with ("distillation", samples done, all).

    Raises:
        OptionError: the state is of another network, other data or settings, or no state.
    """
    samples = drawn(data, graph, ())
    results = [at for at, node in enumerate(graph.outputs) if is_float(node.dtype)]
    if len(samples) < LEAST or not results or not frozen.weights or not has_gradient(graph):
        return frozen
    names = cuts(graph, annotation.edges, VALUES // len(samples))
    held, training = samples[HELD_OUT - 1 :: HELD_OUT], [x for i, x in enumerate(samples, 1) if i % HELD_OUT]
    if vary and takes_pictures(graph):
        held, training = [*held, *map(varied, held)], with_variety(training, graph)
    held, training = ([_lesson(graph, x, results, names) for x in part] for part in (held, training))
    student = Student(graph, annotation, frozen, int_bias)
    run = _Training(student, results, training, epochs)
    key = _key(frozen, [lesson.sample for lesson in (*held, *training)], epochs)
    start = score(student, results, held)
    best = run.restore(state, key) if state is not None and state.exists() else _best(start, student)
    while run.passes < epochs:
        if not run.epoch(progress):
            break  # a loss that is not finite: what follows is no better
        now = score(student, results, held)
        if now.mean() > best.score and is_certain(now - start):
            best = _best(now, student)
        if state is not None:
            run.keep(state, key, best)
    student.restore(best.values)
    return student.frozen()


def _best(scores: np.ndarray, student: Student) -> Best:
    return Best(float(scores.mean()), student.values())


def score(student: Student, results: Sequence[int], lessons: Sequence[Lesson]) -> np.ndarray:
    """Signal over noise of the results of the integer network for each sample, dB: the mean over results."""
    graph, levels = student.network().integer_graph, np.zeros((len(lessons), len(results)))
    for row, lesson in zip(levels, lessons, strict=True):
        outputs = interpret(graph, as_tensors(lesson.sample, graph))
        for at, wanted in enumerate(lesson.results):
            noise = np.square(outputs[results[at]].numpy().astype(np.float64) - wanted).sum()
            signal = np.square(wanted, dtype=np.float64).sum()
            row[at] = 10 * np.log10(max(signal, 1e-300) / max(noise, 1e-300))
    return levels.mean(axis=1)


def is_certain(gains: np.ndarray) -> bool:
    """Whether the mean of gains exceeds 0 by `CERTAIN` standard errors."""
    return bool(gains.mean() > CERTAIN * np.sqrt(gains.var(ddof=1) / len(gains)))


def cuts(graph: InternalGraph, names: Iterable[str], room: int) -> list[str]:
    """Nodes of `names` that all paths from inputs to outputs pass: at most `CUTS`, evenly spread, with up to `room`
    values of one sample in total.
    """
    alone = lone_nodes(graph, names)
    while alone and (len(alone) > CUTS or sum(n.spec.example.size for n in alone) > room):
        if len(alone) > CUTS:
            alone = [alone[i] for i in np.linspace(0, len(alone) - 1, CUTS).astype(int)]
        else:
            alone.remove(max(alone, key=lambda n: n.spec.example.size))
    return [node.name for node in alone]


def lone_nodes(graph: InternalGraph, names: Iterable[str]) -> list[TensorNode]:
    """Nodes of `names` that all paths from inputs to outputs pass, in their order."""
    wanted, last, exprs = set(names), {}, [e for e in graph.exprs() if isinstance(e, Apply)]
    for at, expr in enumerate(exprs):
        last.update({id(node): at for node in expr.inputs})
    last.update({id(node): len(exprs) for node in graph.outputs})
    live, varying = {id(n) for n in graph.inputs}, {id(n) for n in graph.inputs}
    alone: list[TensorNode] = []
    for at, expr in enumerate(exprs):
        if any(id(n) in varying for n in expr.inputs):
            varying |= {id(n) for n in expr.outputs}
            live |= {id(n) for n in expr.outputs}
        live = {one for one in live if last.get(one, -1) > at}
        if expr.outputs[0].name in wanted and live == {id(expr.outputs[0])}:
            alone.append(expr.outputs[0])
    return alone


def has_gradient(graph: InternalGraph) -> bool:
    """Whether all its float ops have one."""
    rules = [e.record.vjp for e in graph.exprs() if isinstance(e, Apply) and is_float(e.outputs[0].dtype)]
    return not any(isinstance(rule, NoRule) and not isinstance(rule, ZeroGradient) for rule in rules)


def _key(frozen: Frozen, samples: Sequence[Batch], epochs: int) -> str:
    """What a state belongs to."""
    digest = hashlib.sha256(repr((epochs, RATES, STEP, [sample_number(x) for x in samples], frozen.edges)).encode())
    for name, weight in frozen.weights.items():
        digest.update(f"{name} {weight.dtype} {weight.values.shape}".encode())
        digest.update(np.ascontiguousarray(weight.values).tobytes())
    return digest.hexdigest()


def _lesson(graph: InternalGraph, sample: Batch, results: Sequence[int], names: Sequence[str]) -> Lesson:
    values: dict[str, np.ndarray] = {}

    def look(node: TensorNode, value: Tensor) -> None:
        if node.name in names:
            values[node.name] = value.numpy()

    outputs = interpret(graph, as_tensors(sample, graph), on_value=look)
    return Lesson(sample, [outputs[at].numpy() for at in results], values)


class _Training:
    """Steps of Adam, whose rates fall to 0 as a cosine, on the noise of results and cuts relative to their power."""

    def __init__(self, student: Student, results: Sequence[int], lessons: Sequence[Lesson], epochs: int) -> None:
        self.student, self.results, self.lessons = student, results, lessons
        self.optimizer = Adam(student.groups(RATES), lr=0.0)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.manager = GradManager().attach(parameters)
        self.passes, self.total = 0, epochs * len(lessons)
        self.power = [_power([x.results[at] for x in lessons]) for at in range(len(results))]
        self.power_at = {name: _power([x.values[name] for x in lessons]) for name in lessons[0].values}

    def keep(self, path: Path, key: str, best: Best) -> None:
        """Write all that the training needs to go on."""
        values = {"now": self.student.values(), "best": best.values, "score": best.score}
        save({"key": key, "passes": self.passes, "optimizer": self.optimizer.state_dict(), **values}, str(path))

    def restore(self, path: Path, key: str) -> Best:
        """Go on from what `keep` wrote."""
        try:
            held = load(str(path))
            if held["key"] == key:
                self.student.restore(held["now"])
                self.optimizer.load_state_dict(held["optimizer"])
                self.passes = int(held["passes"])
                return Best(float(held["score"]), list(held["best"]))
        except (FileFormatError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise OptionError(f"distillation: {str(path)!r} is no state of training ({error}); remove it") from error
        raise OptionError(
            f"distillation: {str(path)!r} is of another network, other data or settings; remove it, or name "
            "another file"
        )

    def epoch(self, progress: Progress | None) -> bool:
        """Train on all lessons once, in an order of its own; False if a loss was not finite."""
        order = np.random.default_rng([0, self.passes]).permutation(len(self.lessons))
        for start in range(0, len(order), STEP):
            part, network = order[start : start + STEP], self.student.network()
            done = self.passes * len(order) + start
            share = 0.5 * (1 + float(np.cos(np.pi * done / self.total)))
            for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
                group["lr"] = rate * share
            for at in part:
                lesson = self.lessons[at]
                with self.manager:
                    sample = as_tensors(lesson.sample, self.student.graph)
                    outputs, values = run_watched(self.student.recorded(network), sample, lesson.values)
                    loss = self._loss(outputs, values, lesson)
                    if not np.isfinite(loss.item()):
                        return False
                    self.manager.backward(loss * (1 / len(part)))
            self.optimizer.step().clear_grad()
            self.student.bound()
            if progress is not None:
                progress("distillation", done + len(part), self.total)
        self.passes += 1
        return True

    def _loss(self, outputs: Sequence[Tensor], values: dict[str, Tensor], lesson: Lesson) -> Tensor:
        loss = Tensor(np.float32(0))
        for at, wanted, power in zip(self.results, lesson.results, self.power, strict=True):
            loss = loss + _noise(outputs[at], wanted) * (1 / (power * len(self.results)))
        for name, wanted in lesson.values.items():
            loss = loss + _noise(values[name], wanted) * (1 / (self.power_at[name] * len(values)))
        return loss


def _noise(value: Tensor, wanted: np.ndarray) -> Tensor:
    return ((value - Tensor(wanted)) ** 2).mean()


def _power(arrays: Sequence[np.ndarray]) -> float:
    """Mean square; 1 where there is nothing to compare."""
    return float(np.mean([np.square(a, dtype=np.float64).mean() for a in arrays if a.size] or [0.0])) or 1.0
