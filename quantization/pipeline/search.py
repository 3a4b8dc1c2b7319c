"""Search: which layers take fewer bits, and which stay more exact, under budgets of size, accuracy and latency.

Every layer is tried alone in each other precision, and the noise that this adds to or takes from the outputs of the
network is measured: its sensitivity. Then layers change in the order of noise for each byte saved, until the network is
small enough, and in the order of noise taken away for each multiply-add, until it is exact enough. Networks along this
way are quantized in full and measured. What was measured stands in a file, with which a search goes on where it ended.
"""

import hashlib
import json
import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from megengine import plan
from megengine.core.dtype import QuantizedDType
from megengine.core.errors import CalibrationError, OptionError
from megengine.core.files import replacing
from megengine.quantization.pipeline.annotate import layers_of
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.quantize import QuantizedModel, quantize_model, requantize
from megengine.quantization.pipeline.report import multiply_adds
from megengine.quantization.pipeline.selection import LayerRule
from megengine.quantization.ranges import Progress, as_samples
from megengine.traced_module import TracedModule, lower
from megengine.traced_module.formats import native
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph

STEPS = 6  # networks that are quantized in full on the way to each budget
RUNS = 15  # of which the median time counts


@dataclass(frozen=True, slots=True)
class Budget:
    """What a network may cost, and how well it must do; None for no matter.

    Args:
        bytes: of stored constants, at most.
        latency: at most, as a multiple of the network with every layer as the settings say.
        agreement: share of samples with the float network's largest output, at least.
        sqnr_db: of the outputs, at least.
    """

    bytes: int | None = None
    latency: float | None = None
    agreement: float | None = None
    sqnr_db: float | None = None

    def __post_init__(self) -> None:
        if all(value is None for value in (self.bytes, self.latency, self.agreement, self.sqnr_db)):
            raise OptionError("search: no budget; give bytes, latency, agreement or sqnr_db")
        if self.agreement is not None and not 0 < self.agreement <= 1:
            raise OptionError(f"search: agreement is {self.agreement!r}; expected a share above 0, at most 1")

    def missed(self, point: "Point", base: "Point") -> float:
        """By how much a network misses the budgets, in parts of them, added up; 0 if it keeps all."""
        most = ((self.bytes, point.bytes), (self.latency, point.latency_ms / max(base.latency_ms, 1e-9)))
        least = ((self.agreement, point.agreement), (self.sqnr_db, point.sqnr_db))
        over = sum(max(0.0, has / limit - 1) for limit, has in most if limit is not None)
        return over + sum(max(0.0, 1 - has / limit) for limit, has in least if limit)


@dataclass(frozen=True, slots=True)
class Point:
    """A network that was quantized in full: its rules, and what was measured."""

    rules: tuple[str, ...]
    bytes: int
    latency_ms: float
    sqnr_db: float
    agreement: float

    def beats(self, other: "Point") -> bool:
        """True if it is at least as good in everything, and better in something."""
        mine, theirs = ((-p.bytes, -p.latency_ms, p.sqnr_db, p.agreement) for p in (self, other))
        return mine != theirs and all(a >= b for a, b in zip(mine, theirs, strict=True))


@dataclass(slots=True)
class SearchState:
    """What a search measured; `noise` by "layer=precision" is relative to the power of the outputs."""

    key: str
    noise: dict[str, float] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)

    def save(self, path: Path) -> None:
        with replacing(path) as file:
            file.write((json.dumps(asdict(self), indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path, key: str) -> "SearchState":
        """The state of the same search. Raises OptionError for that of another one, or a damaged file."""
        if not path.exists():
            return cls(key)
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            points = [Point(**{**point, "rules": tuple(point["rules"])}) for point in held["points"]]
            state = cls(held["key"], {str(k): float(v) for k, v in held["noise"].items()}, points)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(f"search: {str(path)!r} is not the state of a search ({error}); remove it") from error
        if state.key != key:
            raise OptionError(
                f"search: {str(path)!r} is of another model, data or settings; remove it, or name another file"
            )
        return state


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The best network, its measurements, those of all others, and the sensitivities."""

    best: Point
    base: Point
    points: tuple[Point, ...]
    noise: dict[str, float]
    missed: float

    @property
    def pareto(self) -> tuple[Point, ...]:
        """The networks that no other beats, smallest first."""
        kept = [p for p in self.points if not any(other.beats(p) for other in self.points)]
        return tuple(sorted(kept, key=lambda p: p.bytes))


def search(
    model: TracedModule | InternalGraph,
    calibration: Iterable[Any],
    evaluation: Sequence[Any],
    budget: Budget,
    config: QuantConfig | None = None,
    *,
    smaller: str = "w4a8",
    finer: str = "float",
    state: Path | None = None,
    output: Path | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Find precisions of the layers that keep budgets.

    Args:
        calibration: as for `quantize_model`; read again for every network.
        evaluation: samples that judge; they should not be among those for calibration.
        config: settings of all networks; rules of the search come behind its own.
        smaller, finer: precisions of layers that save bytes, and of layers that save the accuracy.
        state: a file for what was measured; a search with the same file goes on where it ended.
        output: a `.mgt` file that always holds the best network so far.

    Raises:
        OptionError: no budget, or the file is of another search.
        CalibrationError: no sample to judge by.
    """
    return _Search(model, calibration, evaluation, budget, config or QuantConfig(), state, output, progress).run(
        smaller, finer
    )


class _Search:
    def __init__(
        self,
        model: TracedModule | InternalGraph,
        calibration: Iterable[Any],
        evaluation: Sequence[Any],
        budget: Budget,
        config: QuantConfig,
        state: Path | None,
        output: Path | None,
        progress: Progress | None,
    ) -> None:
        self.calibration, self.budget, self.config = calibration, budget, config
        self.file, self.output, self.progress = state, output, progress
        graph = lower(model).graph
        self.samples = list(as_samples(evaluation, graph))
        if not self.samples:
            raise CalibrationError("search: no sample to judge by; give evaluation samples")
        self.exact = self._outputs(graph)
        self.state = SearchState(_key(graph, config, self.samples))
        if state is not None:
            self.state = SearchState.load(state, self.state.key)
        self.base = quantize_model(graph, calibration, config, progress=progress)

    def run(self, smaller: str, finer: str) -> SearchResult:
        base = self._point(())
        accuracy = self.budget.agreement is not None or self.budget.sqnr_db is not None
        wanted = {smaller: self.budget.bytes is not None, finer: accuracy}
        noise = self._sensitivities([word for word, asked in wanted.items() if asked])
        layers = [name for name in self.base.frozen.weights]
        sizes, work = self._sizes(), multiply_adds(self.base.float_graph)
        rules: list[str] = []
        if self.budget.bytes is not None:
            order = sorted(layers, key=lambda n: max(noise[f"{n}={smaller}"], 0) / max(sizes[n], 1))
            rules = self._walk([], [f"{n}={smaller}" for n in order], lambda p: p.bytes <= (self.budget.bytes or 0))
        if accuracy:
            taken = {rule.rpartition("=")[0] for rule in rules}
            order = sorted(
                (n for n in layers if n not in taken), key=lambda n: noise[f"{n}={finer}"] / max(work.get(n, 1), 1)
            )
            only = replace(self.budget, bytes=None, latency=None)
            self._walk(rules, [f"{n}={finer}" for n in order], lambda p: not only.missed(p, base))
        points = self.state.points
        best = min(points, key=lambda p: (self.budget.missed(p, base), -p.sqnr_db))
        return SearchResult(best, base, tuple(points), dict(noise), self.budget.missed(best, base))

    def _walk(self, rules: list[str], more: list[str], enough: Any) -> list[str]:
        """The fewest further rules that are enough, by halving; all where none are."""
        low, high = 0, len(more)
        for _ in range(STEPS):
            if low >= high:
                break
            middle = (low + high) // 2
            if enough(self._point((*rules, *more[:middle]))):
                high = middle
            else:
                low = middle + 1
        self._point((*rules, *more[:high]))
        return [*rules, *more[:high]]

    def _point(self, rules: tuple[str, ...]) -> Point:
        """A network by its rules: as it was measured, or quantized in full and measured now."""
        known = next((p for p in self.state.points if p.rules == rules), None)
        if known is not None:
            return known
        made = self.base
        if rules:
            config = self.config.changed(rules=(*self.config.rules, *map(LayerRule.parse, rules)))
            made = requantize(self.base, config, self.calibration, progress=self.progress)
        got = self._outputs(made.integer_graph)
        point = Point(
            rules, stored_bytes(made.integer_graph), self._latency(made), _sqnr(self._noise(got)), self._agreement(got)
        )
        base = self.state.points[0] if self.state.points else point
        best = min((self.budget.missed(p, base) for p in self.state.points), default=math.inf)
        self.state.points.append(point)
        if self.output is not None and self.budget.missed(point, base) <= best:
            native.save(made.traced(), self.output)
        self._save()
        return point

    def _sensitivities(self, precisions: Sequence[str]) -> dict[str, float]:
        """Noise that each layer adds alone in a precision, with the cheapest settings."""
        names = [f"{name}={word}" for word in precisions for name in self.base.frozen.weights]
        cheap = self.config.changed(rounding="nearest", bias_correction=False)
        plain: float | None = None
        for number, rule in enumerate(names, 1):
            if rule not in self.state.noise:
                plain = self._cheap_noise(cheap) if plain is None else plain
                changed = cheap.changed(rules=(*cheap.rules, LayerRule.parse(rule)))
                self.state.noise[rule] = self._cheap_noise(changed) - plain
                self._save()
            if self.progress is not None:
                self.progress("sensitivity", number, len(names))
        return self.state.noise

    def _cheap_noise(self, config: QuantConfig) -> float:
        return self._noise(self._outputs(requantize(self.base, config).integer_graph))

    def _outputs(self, graph: InternalGraph) -> list[np.ndarray]:
        compiled = plan.compile(graph)
        return [np.asarray(compiled(*arrays)[0], np.float64) for arrays in self.samples]

    def _noise(self, got: list[np.ndarray]) -> float:
        left = sum(float(np.square(a - b).sum()) for a, b in zip(self.exact, got, strict=True))
        return left / max(sum(float(np.square(a).sum()) for a in self.exact), 1e-300)

    def _agreement(self, got: list[np.ndarray]) -> float:
        same = [a.argmax(-1) == b.argmax(-1) for a, b in zip(self.exact, got, strict=True)]
        return float(np.mean([np.mean(one) for one in same]))

    def _latency(self, made: QuantizedModel) -> float:
        compiled = plan.compile(made.integer_graph)
        taken = []
        for _ in range(RUNS):
            begin = time.process_time()
            compiled(*self.samples[0])
            taken.append(time.process_time() - begin)
        return 1e3 * float(np.median(taken))

    def _sizes(self) -> dict[str, int]:
        shapes = {e.outputs[0].name: e for e in self.base.float_graph.exprs() if isinstance(e, Apply)}
        return {name: shapes[name].inputs[1].spec.size for name in self.base.frozen.weights}

    def _save(self) -> None:
        if self.file is not None:
            self.state.save(self.file)


def stored_bytes(graph: InternalGraph) -> int:
    """Bytes of all constants as they are stored: 4-bit integers two to a byte."""
    specs = [expr.outputs[0].spec for expr in graph.exprs() if isinstance(expr, Constant)]
    bits = (
        (math.prod(s.shape), s.dtype.bits if isinstance(s.dtype, QuantizedDType) else 8 * s.dtype.itemsize)
        for s in specs
    )
    return sum(-(-count * each // 8) for count, each in bits)


def _sqnr(noise: float) -> float:
    return -10 * math.log10(max(noise, 1e-30))


def _key(graph: InternalGraph, config: QuantConfig, samples: Iterable[Sequence[np.ndarray]]) -> str:
    hashed = hashlib.sha256(repr(config).encode())
    hashed.update(repr([(layer.name, layer.op) for layer in layers_of(graph)]).encode())
    for expr in graph.exprs():
        if isinstance(expr, Constant):
            hashed.update(np.ascontiguousarray(expr.value.numpy()).tobytes())
    for arrays in samples:
        for array in arrays:
            hashed.update(np.ascontiguousarray(array).tobytes())
    return hashed.hexdigest()
