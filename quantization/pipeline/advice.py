"""Advice that was measured: what other settings gain on given inputs, and what they cost in time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from megengine import plan
from megengine.core.errors import QuantizationError
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.checks import Noise, finite
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.config import EFFORTS, QuantConfig
from megengine.quantization.pipeline.quantize import QuantizedModel, requantize
from megengine.quantization.pipeline.selection import PRECISIONS
from megengine.quantization.pipeline.streams import REASON as STREAM
from megengine.quantization.ranges import Progress, as_samples

ROUNDS = 12  # of timing
OUTER = 2  # times at each end that a 96 % interval of the median of 12 leaves out
TURN = 2_000_000  # nanoseconds that a turn takes at least
MOST = 200  # runs of a turn
DEAR = 0.5  # of the time: what costs more comes last
LEAST, WORTH = 0.1, 1.0  # dB that make a setting worth a word, and that somebody notices


@dataclass(frozen=True, slots=True)
class Advice:
    """One change of settings: what to do, the SQNR of the outputs with it and its gain in dB, and the share of time
    that it adds; None where that is within the spread of the measurement.
    """

    text: str
    config: QuantConfig
    sqnr_db: float
    gain: float
    time: float | None

    def to_json(self) -> dict[str, Any]:
        """Plain values, without the settings."""
        return finite({key: value for key, value in asdict(replace(self)).items() if key != "config"})

    def __str__(self) -> str:
        spent = "time: no measurable difference" if self.time is None else f"{round(100 * self.time):+d} % time"
        return f"{self.text}: {self.gain:+.1f} dB, {spent}"


@kinds_named
def advise(
    model: QuantizedModel,
    layers: Sequence[str],
    batches: Iterable[Any],
    calibration: Iterable[Any] | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[Advice, ...]:
    """Quantize again with changed settings and measure compiled plans against the float network, by use.

    Tried are each of `layers` (names, such as the most sensitive ones) in float, with results of 16 bits and, where
    weights have 4, with a weight of 8; all of them in float; residual streams of 16 bits; and settings that cost
    nothing at run time: scales of weights per channel, ranges of least squared error, effort `balanced`. What gains
    most comes first, behind it what costs more than half of the time, then what gains less than 1 dB. What gains less
    than 0.1 dB is left out.

    Args:
        batches: inputs that did not calibrate.
        calibration: the data of the calibration, where a setting reads it again.
    """
    inputs = list(as_samples(batches, model.float_graph))
    exact = [plan.compile(model.float_graph, threads=1)(*x) for x in inputs]
    here, again = (plan.compile(model.integer_graph, threads=1) for _ in range(2))
    base = _sqnr(here, inputs, exact)
    found = []
    ends = {node.name for node in model.float_graph.inputs}  # are among the sensitive values, and no layers
    layers = [name for name in layers if name not in ends]
    proposals = _proposals(model.config, layers, reads=calibration is not None, streams=_has_streams(model))
    for number, (text, config) in enumerate(proposals, 1):
        other = _compiled(model, config, calibration)
        ratio = base if other is None else _sqnr(other, inputs, exact)
        if ratio - base >= LEAST:
            found.append(Advice(text, config, ratio, ratio - base, slower(here, again, other, inputs[0])))
        if progress is not None:
            progress("advice", number, len(proposals))
    return tuple(sorted(found, key=lambda one: (one.gain < WORTH, (one.time or 0) > DEAR, -one.gain)))


def _compiled(model: QuantizedModel, config: QuantConfig, calibration: Iterable[Any] | None) -> Any:
    """A plan of the network with other settings; None where they leave nothing to quantize."""
    if calibration is None:
        config = config.changed(rounding="nearest", bias_correction=False, equalize=False, smooth=False)
    try:
        return plan.compile(requantize(model, config, calibration).integer_graph, threads=1)
    except QuantizationError:
        return None


def _has_streams(model: QuantizedModel) -> bool:
    """Whether sums of the network would have 16 bits, and have not."""
    edges = annotate(model.float_graph, model.config.changed(wide_sums=True)).edges
    return not model.config.wide_sums and any(spec.reason == STREAM for spec in edges.values())


def _proposals(
    config: QuantConfig, layers: Sequence[str], *, reads: bool, streams: bool
) -> list[tuple[str, QuantConfig]]:
    """What to try, in words and as settings."""
    bits, results = PRECISIONS[config.precision]
    kept = [(f"keep {name} in float", config.changed(exclude=(*config.exclude, name))) for name in layers]
    if results == 8:
        kept += [(f"keep {name} in int16", _ruled(config, f"{name}=w8a16")) for name in layers]
    if bits == 4:
        whole = f"w8a{results}" if results else "w8"
        kept += [(f"keep the weight of {name} in int8", _ruled(config, f"{name}={whole}")) for name in layers]
    if len(layers) > 1:
        every = config.changed(exclude=(*config.exclude, *layers))
        kept.append((f"keep all of {', '.join(layers)} in float", every))
    if streams and results == 8:
        kept.append(("--wide-sums", config.changed(wide_sums=True)))
    if bits and config.weights == "per_tensor":
        kept.append(("--weights per_channel", config.changed(weights="per_channel")))
    careful = EFFORTS["balanced"]
    if config.activations != careful["activations"]:
        kept.append(
            (f"--activations {careful['activations'].name}", config.changed(activations=careful["activations"]))
        )
    if reads and any(getattr(config, name) != value for name, value in careful.items()):
        kept.append(("--effort balanced", config.changed(**careful)))
    return kept


def _ruled(config: QuantConfig, rule: str) -> QuantConfig:
    return config.changed(rules=(*config.rules, rule))


def _sqnr(one: Any, inputs: Sequence[Any], exact: Sequence[Sequence[np.ndarray]]) -> float:
    noise = Noise()
    for arrays, wanted in zip(inputs, exact, strict=True):
        noise.add(wanted, one(*arrays))
    return noise.sqnr_db


def slower(one: Any, again: Any, other: Any, inputs: Sequence[np.ndarray]) -> float | None:
    """By what share of time another plan is slower than `one`: the median of CPU time in turns; None if no difference
    can be measured.

    `again` is `one` compiled a second time, which lies elsewhere in memory: a difference counts where 96 % intervals
    (order statistics) of both medians are apart.
    """
    runs = (one, again, other)
    counts = min(MOST, -(-TURN // max(_spent(one, inputs, 1), 1)))
    ratios: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS + 2):
        times = [0, 0, 0]
        for place in range(3):  # each comes first, second and third equally often
            at = (place + turn) % 3
            times[at] = _spent(runs[at], inputs, counts)
        if turn > 1:
            for kept, time_of in zip(ratios, times[1:], strict=True):
                kept.append(time_of / max(times[0], 1))
    (low, _, high), (first, middle, last) = map(_interval, ratios)
    return middle - 1 if first > max(high, 1) or last < min(low, 1) else None


def _spent(run: Any, inputs: Sequence[np.ndarray], count: int) -> int:
    """Nanoseconds of CPU time."""
    start = time.process_time_ns()
    for _ in range(count):
        run(*inputs)
    return time.process_time_ns() - start


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The ends of the interval, the median between them."""
    ordered = sorted(values)
    return ordered[OUTER], statistics.median(ordered), ordered[-1 - OUTER]
