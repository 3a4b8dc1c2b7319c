"""Search: which layers take fewer bits, and which results more, under budgets of size, accuracy and latency.

Each weight and each result is rounded alone, in a network that is float otherwise, and the noise that reaches the
outputs is its sensitivity: such noises add up. Layers take fewer bits in the order of noise for each byte saved, until
the network is small enough. Then results take more bits in the order of noise taken away for the time that it costs, by
the steps of plans, or by a table. Networks along this way are made and measured. What was measured stands in a file,
with which a search goes on where it ended.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import megengine.traced_module as tm
from megengine import plan
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import CalibrationError
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.mixing import Mixer, Move
from megengine.quantization.pipeline.quantize import quantize_model
from megengine.quantization.pipeline.report import multiply_adds
from megengine.quantization.pipeline.search_judging import LEAD, Judge, Judged, Told
from megengine.quantization.pipeline.search_latency import LatencyTable
from megengine.quantization.pipeline.search_state import Budget, Point, SearchState
from megengine.quantization.pipeline.selection import PRECISIONS, layers_of
from megengine.quantization.ranges import Batch, Progress, as_samples
from megengine.traced_module import TracedModule
from megengine.traced_module.formats import native
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.tracing.entry import on_processor

STEPS = 6  # networks on the way to a budget, by halving
ROUNDS = 6  # networks until the time that a budget allows is used
GRAIN = 400  # parts of the room, in which costs are counted
TELLING = 3  # one of so many samples chooses nothing, and tells how good the best network is
BYTE_GRAIN = 20_000  # as `GRAIN`, of bytes
AIM = 0.95  # of the time that a budget allows beyond the unchanged network: clocks differ from run to run
REPEATS = 30  # runs of a plan, of which every step counts with its median
PAIRS = 100  # runs of two plans in turns, of which the least times count: they leave out what others take


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best network, its measurements, those of all others, and the sensitivities.

    `judged` says on how many samples agreement was judged, `told` what the samples say that chose nothing, `table` what
    the steps of all networks took.
    """

    best: Point
    base: Point
    points: tuple[Point, ...]
    noise: dict[str, float]
    missed: float
    judged: Judged = field(default_factory=lambda: Judged(0, 0))
    told: Told = field(default_factory=lambda: Told(0, 0, 0, 0))
    table: LatencyTable = field(default_factory=LatencyTable)

    @property
    def pareto(self) -> tuple[Point, ...]:
        """The networks that no other beats, smallest first."""
        kept = [p for p in self.points if not any(other.beats(p) for other in self.points)]
        return tuple(sorted(kept, key=lambda p: p.bytes))


@kinds_named
def search(
    model: TracedModule | InternalGraph,
    calibration: Iterable[Any],
    evaluation: Sequence[Any],
    budget: Budget,
    config: QuantConfig | None = None,
    *,
    smaller: str = "w4a8",
    finer: str = "w8a16",
    table: LatencyTable | None = None,
    state: Path | None = None,
    output: Path | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find precisions of the layers that keep budgets.

    Latency is CPU time on one thread: each network runs in turns with the unchanged one, so that the ratio depends
    little on what else the machine does. Which changes to try follows from the times of the steps that differ.

    Args:
        calibration: as for `quantize_model`; read again for some settings.
        evaluation: samples that judge; they should not be among those for calibration. Every third chooses nothing.
        config: settings of all networks; rules of the search come behind its own.
        smaller, finer: precisions of layers that save bytes, and of layers that save the accuracy. A finer precision
            that has bits for results is given to results alone.
        table: what steps take on the device, in place of measuring them here.
        state: a file for what was measured; a search with the same file goes on where it ended.
        output: a `.mgt` file that always holds the best network so far.

    Raises:
        OptionError: no budget, the file is of another search, or the table lacks a layer.
        CalibrationError: no sample to judge by.
    """
    one = _Search(model, evaluation, budget, config or QuantConfig(), table, state, output, progress)
    return one.run(calibration, smaller, finer)


class _Search:
    def __init__(
        self,
        model: TracedModule | InternalGraph,
        evaluation: Sequence[Any],
        budget: Budget,
        config: QuantConfig,
        table: LatencyTable | None,
        state: Path | None,
        output: Path | None,
        progress: Progress | None,
    ) -> None:
        self.budget, self.config = budget, config
        self.table, self.file, self.output, self.progress = table, state, output, progress
        self.graph = on_processor(model)
        samples = list(as_samples(evaluation, self.graph))
        if not samples:
            raise CalibrationError("search: no sample to judge by; give evaluation samples")
        self.telling = samples[TELLING - 1 :: TELLING]
        self.samples = [one for at, one in enumerate(samples, 1) if at % TELLING]
        self.exact = self._outputs(self.graph)
        self.judge = Judge(self.exact)
        self.made: dict[tuple[tuple[str, ...], str], InternalGraph] = {}  # by rules and rounding, from the start
        self.state = SearchState(_key(self.graph, config, samples, table))
        if state is not None:
            self.state = SearchState.load(state, self.state.key)

    def run(self, calibration: Iterable[Any], smaller: str, finer: str) -> SearchResult:
        self.mixer = Mixer(quantize_model(self.graph, calibration, self.config, progress=self.progress))
        if self.table is not None:
            self.table.of(self.mixer.base.integer_graph)  # what it lacks is said before anything is measured
        elif not self.state.steps:
            self.state.steps = self._steps(self.mixer.base.integer_graph)
        self._point([])
        moves: list[Move] = []
        if self.budget.bytes is not None:
            self.mixer.prepare(smaller, calibration, self.progress)
            moves = self._smaller(smaller, self.budget.bytes)
        if self.budget.agreement is not None or self.budget.sqnr_db is not None:
            self._finer(moves, finer)
        base, points = self.state.points[0], self.state.points
        best = self._anew(min(points, key=self._rank), calibration)
        found = dict(self.state.noise), self.budget.missed(best, base)
        judged = self.judge.judged, self._told(self._network(best, calibration))
        return SearchResult(best, base, tuple(points), *found, *judged, self.table or self.state.table)

    def _anew(self, best: Point, calibration: Iterable[Any]) -> Point:
        """The best one of the best network and of it quantized from the start, which is written.

        Equalization and rounding then know which results have more bits and which weights fewer. Where layers are
        rounded together, they are so in turn, too: for one network the time is there.
        """
        kinds = [self.config.rounding, *(["gptaq"] if self.config.rounding == "gptq" else [])]
        for rounding in kinds if best.rules else []:
            if not any(p.anew == rounding and p.rules == best.rules for p in self.state.points):
                self._measured(best.rules, self._quantized(best.rules, rounding, calibration), anew=rounding)
        return min(self.state.points, key=self._rank)

    def _quantized(self, rules: tuple[str, ...], rounding: str, calibration: Iterable[Any]) -> InternalGraph:
        """The network, quantized from the start."""
        vary = self.config.vary or rounding != self.config.rounding
        config = self.config.changed(rules=(*self.config.rules, *rules), rounding=rounding, vary=vary)
        if (rules, rounding) not in self.made:
            made = quantize_model(self.graph, calibration, config, progress=self.progress)
            self.made[rules, rounding] = made.integer_graph
        return self.made[rules, rounding]

    def _told(self, graph: InternalGraph) -> Told:
        """What the samples that chose nothing say of the best network, which is written."""
        self._write(graph)
        if not self.telling:
            return Told(0, 0, 0, 0)
        return Judge(self._outputs(self.graph, self.telling)).told(self._outputs(graph, self.telling))

    def _rank(self, point: Point) -> tuple[float, float]:
        """Networks with smaller ones are better."""
        return self.budget.missed(point, self.state.points[0]), -point.sqnr_db

    # ------------------------------------------------------------ fewer bytes

    def _smaller(self, word: str, limit: int) -> list[Move]:
        """The layers that take fewer bits."""
        sizes, bits = self._sizes(), PRECISIONS[word][0] or 0
        specs = self.mixer.base.frozen.weights
        saved = {
            (n, word): sizes[n] * (one.dtype.stored_bits - bits) // 8
            for n, one in specs.items()
            if one.dtype.bits > bits
        }
        other = self.mixer.models[-1]
        noise = self._noises([*saved], lambda move: self.mixer.rounded_weight(move[0], other))
        less = self.state.points[0].bytes - limit
        for part in (0.25, 0.5, 0.75):
            self._point(_that_save(part * less, saved, noise))
        while True:
            moves = _that_save(less, saved, noise)
            over = self._point(moves).bytes - limit
            if over <= 0 or len(moves) == len(saved):
                return moves
            less += over  # scales and biases take room, too

    def _sizes(self) -> dict[str, int]:
        shapes = {e.outputs[0].name: e for e in self.mixer.base.float_graph.exprs() if isinstance(e, Apply)}
        return {name: shapes[name].inputs[1].spec.size for name in self.mixer.base.frozen.weights}

    # ------------------------------------------------------------ more accuracy

    def _finer(self, moves: list[Move], word: str) -> None:
        """Results, or layers, that take more bits, as many as the budgets ask for."""
        if self.budget.latency is None and self._accurate(moves):
            return None
        if PRECISIONS[word][1] is not None:
            more = self._edge_moves(PRECISIONS[word][1])
            noise = self._noises(more, lambda move: self.mixer.rounded_edge(move[0]))
        else:
            taken = {name for name, _ in moves}
            more = [(name, word) for name in self.mixer.base.frozen.weights if name not in taken]
            plain = self._noise(self._outputs(self.mixer.base.integer_graph))
            changed = self._noises(more, lambda move: self.mixer.network([move]))
            noise = {move: plain - left for move, left in changed.items()}
        if self.budget.latency is not None:
            return self._use_time(moves, self._costs(more), noise)
        work = self._work()
        order = sorted(more, key=lambda m: -noise[m] / max(work.get(m[0], 1), 1))
        return self._halve(moves, order)

    def _edge_moves(self, bits: int | None) -> list[Move]:
        words = {pair: word for word, pair in PRECISIONS.items()}
        asked = self.mixer.base.annotation.precision
        weights = {name: asked[name].weight_bits if name in asked else None for name in self.mixer.edges()}
        return [(name, words[weight or 8, bits]) for name, weight in weights.items()]

    def _work(self) -> dict[str, int]:
        """Multiply-adds of what reads a value, and of the layer that makes it."""
        graph = self.mixer.base.float_graph
        macs = multiply_adds(graph)
        return {
            n.name: sum(macs.get(u.outputs[0].name, 0) for u in n.users) + macs.get(n.name, 0) for n in graph.nodes()
        }

    def _halve(self, moves: list[Move], more: list[Move]) -> None:
        """The fewest further moves that are accurate enough; all where none are."""
        low, high = 0, len(more)
        for _ in range(STEPS):
            if low >= high:
                break
            middle = (low + high) // 2
            if self._accurate([*moves, *more[:middle]]):
                high = middle
            else:
                low = middle + 1
        self._point([*moves, *more[:high]])

    def _accurate(self, moves: list[Move]) -> bool:
        only = replace(self.budget, bytes=None, latency=None)
        return not only.missed(self._point(moves), self.state.points[0])

    def _use_time(self, moves: list[Move], costs: dict[Move, float], noise: dict[Move, float]) -> None:
        """Moves that take the most noise for their time, until the time that the budget allows is used."""
        aim = AIM if self.table is None else 1
        allowed = self.state.points[0].latency_ms * (1 + aim * ((self.budget.latency or 1) - 1))
        start = self._point(moves).latency_ms
        gains = {move: gain for move, gain in noise.items() if gain > 0}
        room, tried = allowed - start, [[]]
        for _ in range(ROUNDS):  # changes side by side cost less than each alone
            chosen = _knapsack(gains, costs, room)
            if chosen in tried:
                break
            tried.append(chosen)
            taken = self._point([*moves, *chosen]).latency_ms - start
            room *= float(np.clip((allowed - start) / max(taken, 1e-9), 0.5, 2))
        for part in (0.25, 0.5, 0.75):
            self._point([*moves, *_knapsack(gains, costs, part * room)])

    # ------------------------------------------------------------ measuring

    def _point(self, moves: list[Move]) -> Point:
        """A network by its moves: as it was measured, or made and measured now."""
        rules = self.mixer.rules(moves)
        known = next((p for p in self.state.points if p.rules == rules and not p.anew), None)
        if known is not None:
            return known
        return self._measured(rules, self.mixer.network(moves) if moves else self.mixer.base.integer_graph)

    def _measured(self, rules: tuple[str, ...], graph: InternalGraph, *, anew: str = "") -> Point:
        """Measure a network, and write it if no other is better."""
        got = self._outputs(graph)
        latency = self._latency(graph)
        accuracy = _sqnr(self._noise(got)), *self.judge.agreement(got)
        point = Point(rules, stored_bytes(graph), latency, *accuracy, anew)
        best = min(map(self._rank, self.state.points), default=(math.inf, math.inf))
        self.state.points.append(point)
        if self._rank(point) <= best:
            self._write(graph)
        self._save()
        if self.progress is not None:
            self.progress("networks", len(self.state.points), None)
        return point

    def _network(self, point: Point, calibration: Iterable[Any]) -> InternalGraph:
        """A network that was measured."""
        if point.anew:
            return self._quantized(point.rules, point.anew, calibration)
        moves = [(name, word) for name, _, word in (rule.rpartition("=") for rule in point.rules)]
        return self.mixer.network(moves) if moves else self.mixer.base.integer_graph

    def _noises(self, moves: Sequence[Move], made: Callable[[Move], InternalGraph]) -> dict[Move, float]:
        """Noise that each move brings alone, or that its edge alone brings."""
        return self._each("sensitivity", self.state.noise, moves, lambda m: self._noise(self._outputs(made(m))))

    def _costs(self, moves: Sequence[Move]) -> dict[Move, float]:
        """Milliseconds that each move takes alone. Layers whose data, results or both have moved are met first."""
        for part in (moves, moves[::2], moves[1::2]):
            if self.table is not None:
                self.table.of(self.mixer.network(part))
            elif not self.state.cost:
                self._steps(self.mixer.network(part))
        return self._each("latency", self.state.cost, moves, lambda m: self._extra(self.mixer.network([m])))

    def _each(
        self, stage: str, known: dict[str, float], moves: Sequence[Move], measured: Callable[[Move], float]
    ) -> dict[Move, float]:
        found = {}
        for number, move in enumerate(moves, 1):
            key = "=".join(move)
            if key not in known:
                known[key] = measured(move)
                self._save()
            found[move] = known[key]
            if self.progress is not None:
                self.progress(stage, number, len(moves))
        return found

    def _outputs(self, graph: InternalGraph, samples: list[Batch] | None = None) -> list[np.ndarray]:
        compiled = plan.compile(graph)
        return [np.asarray(compiled(*arrays)[0], np.float64) for arrays in samples or self.samples]

    def _noise(self, got: list[np.ndarray]) -> float:
        left = sum(float(np.square(a - b).sum()) for a, b in zip(self.exact, got, strict=True))
        return left / max(sum(float(np.square(a).sum()) for a in self.exact), 1e-300)

    def _steps(self, graph: InternalGraph) -> dict[str, float]:
        """Milliseconds of every step of a plan, by its name and kernel."""
        found: dict[str, float] = {}
        times = plan.compile(graph, threads=1).profile(*self.samples[0], repeat=REPEATS)
        self.state.table.learn(graph, [(step.name, 1e3 * seconds) for step, seconds in times])
        for step, seconds in times:
            key = f"{step.name} {step.kernel}"
            found[key] = found.get(key, 0.0) + 1e3 * seconds
        return found

    def _latency(self, graph: InternalGraph) -> float:
        """Milliseconds of a network: by the table, or those of the unchanged one, times the ratio of both."""
        if self.table is not None:
            return self.table.of(graph)
        plans = [plan.compile(one, threads=1) for one in (self.mixer.base.integer_graph, graph)]
        self._steps(graph)
        taken = np.zeros((PAIRS, 2))
        for pair in range(PAIRS):
            for at, one in enumerate(plans):
                begin = time.process_time()
                one(*self.samples[0])
                taken[pair, at] = 1e3 * (time.process_time() - begin)
        least = taken.min(axis=0)
        first = self.state.points[0].latency_ms if self.state.points else float(least[0])
        alike = graph is self.mixer.base.integer_graph
        return first if alike else first * float(least[1] / max(least[0], 1e-9))

    def _extra(self, graph: InternalGraph) -> float:
        """Milliseconds of the steps that the unchanged network does not have, less those that it has alone."""
        if self.table is not None:
            return self.table.of(graph) - self.table.of(self.mixer.base.integer_graph)
        mine, theirs = self._steps(graph), self.state.steps
        return sum(t for key, t in mine.items() if key not in theirs) - sum(
            t for key, t in theirs.items() if key not in mine
        )

    def _write(self, graph: InternalGraph) -> None:
        if self.output is not None:
            native.save(tm.TracedModule.from_graph(graph), self.output)

    def _save(self) -> None:
        if self.file is not None:
            self.state.save(self.file)


def _that_save(least: float, saved: dict[Move, int], noise: dict[Move, float]) -> list[Move]:
    """The moves of the least noise that save so many bytes; all where these are too few."""
    room = sum(saved.values()) - least
    stay = set(_knapsack(noise, saved, room, BYTE_GRAIN)) if least > 0 else saved
    return [move for move in saved if move not in stay]


def _knapsack(gains: Mapping[Move, float], costs: Mapping[Move, float], room: float, grain: int = GRAIN) -> list[Move]:
    """The moves of the largest sum of gains whose costs fit together, in their order."""
    free = [move for move in gains if costs[move] <= 0]
    if room <= 0:
        return []
    paid = [move for move in gains if 0 < costs[move] <= room]
    units = {move: max(int(np.ceil(costs[move] / room * grain)), 1) for move in paid}
    best, takes = np.zeros(grain + 1), np.zeros((len(paid), grain + 1), bool)  # by the room that is used
    for at, move in enumerate(paid):
        with_it = np.full(grain + 1, -np.inf)
        with_it[units[move] :] = best[: grain + 1 - units[move]] + gains[move]
        takes[at] = with_it > best
        best = np.maximum(best, with_it)
    left, chosen = grain, set(free)
    for at in reversed(range(len(paid))):
        if takes[at, left]:
            chosen.add(paid[at])
            left -= units[paid[at]]
    return [move for move in gains if move in chosen]


@kinds_named
def stored_bytes(graph: InternalGraph) -> int:
    """Bytes of all constants as they are stored: 4-bit integers two to a byte."""
    specs = [expr.outputs[0].spec for expr in graph.exprs() if isinstance(expr, Constant)]
    bits = (
        (math.prod(s.shape), s.dtype.stored_bits if isinstance(s.dtype, QuantizedDType) else 8 * s.dtype.itemsize)
        for s in specs
    )
    return sum(-(-count * each // 8) for count, each in bits)


def _sqnr(noise: float) -> float:
    return -10 * math.log10(max(noise, 1e-30))


def _key(
    graph: InternalGraph, config: QuantConfig, samples: Iterable[Sequence[np.ndarray]], table: LatencyTable | None
) -> str:
    hashed = hashlib.sha256(repr((config, LEAD, TELLING, table and sorted(table.rows.items()))).encode())
    hashed.update(repr([(layer.name, layer.op) for layer in layers_of(graph)]).encode())
    for expr in graph.exprs():
        if isinstance(expr, Constant):
            hashed.update(np.ascontiguousarray(expr.value.numpy()).tobytes())
    for arrays in samples:
        for array in arrays:
            hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()
