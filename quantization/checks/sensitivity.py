"""Sensitivity: what each layer alone costs, and what the noise comes from: weights, activations, biases, fusion."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from megengine.core.notebook import html_table
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.checks.analysis import finite, ratio_db
from megengine.quantization.checks.switching import KINDS, Sample, Switch, Switchboard
from megengine.quantization.ranges import Progress, as_batches, as_tensors
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


@dataclass(frozen=True, slots=True)
class LayerReport:
    """What one layer costs; all ratios are SQNR in dB against the float network.

    Args:
        name, op, module: its node, op and the path of its module; an edge that no layer alone makes stands for itself.
        alone: of the outputs, with this layer alone in integers (its weight, its bias and the edge that it makes).
        freed: of the outputs, with this layer alone in float.
        gain: `freed` minus the ratio of the network in integers.
        local: at the layer's own output, on exact inputs, with one of "weights", "activations" (its input), "bias"
            rounded.
        weight_low, weight_high: ends of the float weight by output channel; empty without a weight.
    """

    name: str
    op: str
    module: str
    alone: float
    freed: float
    gain: float
    local: dict[str, float]
    weight_low: tuple[float, ...] = ()
    weight_high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Result of `sensitivity`.

    Args:
        output_sqnr_db: of the outputs, all in integers.
        parts: of the outputs with the "weights", the "activations" or the "bias" of all layers alone rounded. A bias
            that makes up for the rounding of its weight does harm alone.
        fusion_db: what integer arithmetic (fused layers, integer sums) adds to the rounded network's ratio; None
            without an integer network.
        layers: in order of execution.
        batches: inputs that were run.
    """

    output_sqnr_db: float
    parts: dict[str, float]
    fusion_db: float | None
    layers: tuple[LayerReport, ...]
    batches: int

    def worst(self, count: int = 10) -> tuple[LayerReport, ...]:
        """Layers whose return to float gains most, first."""
        return tuple(sorted(self.layers, key=lambda one: -one.gain)[:count])

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers; infinities become None."""
        return finite(asdict(self))

    def _repr_html_(self) -> str:
        rows = [(x.name, x.op, x.module, *(f"{v:.1f}" for v in (x.alone, x.freed, x.gain))) for x in self.layers]
        title = ", ".join(f"{kind} alone {ratio:.1f} dB" for kind, ratio in self.parts.items())
        headings = ("layer", "op", "module", "alone int8 dB", "alone float dB", "gain dB")
        return html_table(headings, rows, numbers=3, title=f"all {self.output_sqnr_db:.1f} dB; {title}")


@dataclass(slots=True)
class Noise:
    """Running signal and noise of what is compared."""

    signal: float = 0.0
    noise: float = 0.0
    count: int = 0

    def add(self, exact: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> None:
        """Take the results of one input; those of other shapes or of integers do not count."""
        for a, b in zip(exact, other, strict=True):
            if a.shape == b.shape and a.dtype.kind == "f":
                difference = a - b
                self.count += a.size
                self.signal += float(np.vdot(a, a))
                self.noise += float(np.vdot(difference, difference))

    @property
    def sqnr_db(self) -> float:
        """Signal to noise in decibel."""
        return ratio_db(self.signal, self.noise)


@dataclass(slots=True)
class _Sums:
    """Running comparisons of one layer."""

    alone: Noise = field(default_factory=Noise)
    freed: Noise = field(default_factory=Noise)
    local: dict[str, Noise] = field(default_factory=dict)


@kinds_named
def sensitivity(
    float_graph: InternalGraph,
    qdq_graph: InternalGraph,
    batches: Iterable[Any],
    *,
    integer_graph: InternalGraph | None = None,
    progress: Progress | None = None,
) -> Sensitivity:
    """Run every layer alone in integers and alone in float on the batches; graphs as for `analyze`.

    A batch costs one run of each network, and for each layer two runs of what comes behind it.
    """
    board = Switchboard(float_graph, qdq_graph)
    units = board.units()
    sums = {name: _Sums() for name in units}
    parts = {kind: Noise() for kind in KINDS}
    total, integers, done = Noise(), Noise(), 0
    for arrays in as_batches(batches, float_graph):
        sample = board.sample(arrays)
        total.add(sample.exact, sample.rounded)
        for kind in KINDS:
            switches = [one for one in sample.board.switches if one.kind == kind]
            parts[kind].add(sample.exact, sample.turned_on(switches))
        if integer_graph is not None:
            outputs = interpret(integer_graph, as_tensors(arrays, integer_graph))
            integers.add(sample.exact, [y.numpy() for y in outputs])
        for name, switches in units.items():
            _run_layer(sums[name], sample, name, switches)
        done += 1
        if progress is not None:
            progress("sensitivity", done, None)
    base = total.sqnr_db
    layers = tuple(_report(board, name, one, base) for name, one in sums.items())
    fusion = None if integer_graph is None else _difference(integers.sqnr_db, base)
    return Sensitivity(base, {kind: one.sqnr_db for kind, one in parts.items()}, fusion, layers, done)


def _difference(one: float, other: float) -> float:
    return 0.0 if one == other else one - other


def _run_layer(sums: _Sums, sample: Sample, name: str, switches: Sequence[Switch]) -> None:
    sums.alone.add(sample.exact, sample.turned_on(switches))
    sums.freed.add(sample.exact, sample.turned_off(switches))
    if name in sample.board.layers:
        exact = sample.layer(name)
        for kind in KINDS:
            sums.local.setdefault(kind, Noise()).add([exact], [sample.layer(name, kind)])


def _report(board: Switchboard, name: str, sums: _Sums, base: float) -> LayerReport:
    expr = board.rounded.node(name).expr
    freed = sums.freed.sqnr_db
    low, high = weight_ends(board, name)
    return LayerReport(
        name=name,
        op=expr.op if isinstance(expr, Apply) else "input",
        module=str(expr.meta.get("module", "") or ""),
        alone=sums.alone.sqnr_db,
        freed=freed,
        gain=_difference(freed, base),
        local={kind: one.sqnr_db for kind, one in sums.local.items()},
        weight_low=low,
        weight_high=high,
    )


def weight_ends(board: Switchboard, name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Smallest and largest value of a layer's float weight by output channel; empty without a weight."""
    rows = weight_rows(board, name)
    if rows is None:
        return (), ()
    return tuple(map(float, rows[0].min(axis=1))), tuple(map(float, rows[0].max(axis=1)))


def weight_rows(board: Switchboard, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """The float and the rounded weight of a layer as float64 matrices with a row for each output channel."""
    if name not in board.layers:
        return None
    exact, stored = board.weight_of(name)
    axis = stored.dtype.axis if stored.dtype.axis is not None else _channel_axis(board.layers[name])
    whole = exact.astype(np.float64), dtype_values(stored)
    first, second = (np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1) for w in whole)
    return first, second


def dtype_values(tensor: Any) -> np.ndarray:
    """The real numbers that a quantized tensor stands for, in float64."""
    dtype = tensor.dtype
    scale = np.asarray(dtype.scale, np.float64)
    values = tensor.numpy().astype(np.float64) - dtype.zero_point
    if scale.ndim:
        scale = scale.reshape([-1 if i == dtype.axis else 1 for i in range(values.ndim)])
    return values * scale


def _channel_axis(expr: Apply) -> int:
    if expr.record.rows:
        return 0 if expr.attrs.get("transpose_b") else 1
    return 1 if expr.record.transposed else 0
