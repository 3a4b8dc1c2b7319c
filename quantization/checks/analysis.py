"""Analysis: how far the integer network is from the float one, edge by edge."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.core.notebook import html_table
from megengine.core.text import counted
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.ranges import Histogram, Progress, as_batches, as_tensors
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


def ratio_db(signal: float, noise: float) -> float:
    """A ratio of powers in decibel; infinity without noise."""
    if not noise:
        return math.inf
    return 10 * math.log10(signal / noise) if signal and math.isfinite(noise) else -math.inf


@dataclass(slots=True)
class Agreement:
    """Running comparison of two signals: sums only, so memory does not grow with the data."""

    count: int = 0
    signal: float = 0.0
    noise: float = 0.0
    other: float = 0.0
    product: float = 0.0
    largest: float = 0.0

    def update(self, exact: np.ndarray, approximate: np.ndarray) -> None:
        """Take one batch of both, without the places where the exact values are infinite: masks have no ratio."""
        a, b = exact.reshape(-1).astype(np.float64), approximate.reshape(-1).astype(np.float64)
        masked = np.isinf(a)
        if masked.any():
            a, b = a[~masked], b[~masked]
        self.count += a.size
        self.signal += float(a @ a)
        self.other += float(b @ b)
        self.product += float(a @ b)
        difference = a - b
        self.noise += float(difference @ difference)
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0.0)))

    @property
    def sqnr_db(self) -> float:
        """Signal to quantization noise ratio in decibel; infinity when equal."""
        return ratio_db(self.signal, self.noise)

    @property
    def cosine(self) -> float:
        """Cosine similarity."""
        scale = math.sqrt(self.signal * self.other)
        if math.isinf(scale):
            return 0.0
        return self.product / scale if scale else 1.0


BARS = 64  # of a histogram in a report
SOURCES = {"steps": "its own steps", "cut": "values beyond its range", "earlier": "weights and edges before"}


@dataclass(frozen=True, slots=True)
class EdgeReport:
    """What analysis found on one integer edge.

    Args:
        name, op, module: node of the float graph, the op that makes it, and the path of its module.
        dtype, scale, zero_point: name and parameters of the quantized dtype.
        sqnr_db: signal to quantization noise ratio against the float network.
        cosine: cosine similarity to the float network's values.
        cut: part of the values that round to a code beyond the first or the last one, and are cut.
        steps_sqnr_db: the ratio that rounding on this edge alone leaves.
        noise: part of the noise that comes from "steps" (rounding here), "cut" (values beyond the range here) and
            "earlier" (what arrives here: rounded weights and edges before).
        largest_error: largest difference from the float network.
        observed: smallest and largest float value.
        representable: ends of the integers' range.
        histogram: counts of the "float" and of the "integer" values in bars of equal width from "low" to "high".
    """

    name: str
    op: str
    module: str
    dtype: str
    scale: float
    zero_point: int
    sqnr_db: float
    cosine: float
    cut: float
    steps_sqnr_db: float
    noise: dict[str, float]
    largest_error: float
    observed: tuple[float, float]
    representable: tuple[float, float]
    histogram: dict[str, Any] = field(default_factory=dict)

    @property
    def noise_from(self) -> str:
        """What most of the noise comes from, in words; "" for an exact edge."""
        largest = max(self.noise, key=lambda source: self.noise[source])
        return SOURCES[largest] if self.noise[largest] else ""


@dataclass(frozen=True, slots=True)
class Analysis:
    """Result of `analyze`: every edge in execution order, and the outputs of the network.

    `output_agreement` is the share of samples whose first output has its largest value at the same place; None for
    outputs that are no rows of numbers. `output_samples` counts these.
    """

    edges: tuple[EdgeReport, ...]
    output_sqnr_db: float
    output_cosine: float
    batches: int
    output_agreement: float | None = None
    output_samples: int = 0

    def worst(self, count: int = 10) -> tuple[EdgeReport, ...]:
        """Edges with the lowest SQNR first."""
        return tuple(sorted(self.edges, key=lambda e: e.sqnr_db)[:count])

    def _repr_html_(self) -> str:
        rows = [
            (e.name, e.op, e.module, e.dtype, e.noise_from, f"{e.cut:.2%}", f"{e.cosine:.4f}", f"{e.sqnr_db:.1f}")
            for e in self.edges
        ]
        title = (
            f"output: SQNR {self.output_sqnr_db:.1f} dB, "
            f"cosine {self.output_cosine:.4f}, {counted(self.batches, 'batch')}"
        )
        headings = ("edge", "op", "module", "dtype", "noise from", "cut", "cosine", "SQNR dB")
        return html_table(headings, rows, numbers=3, title=title)

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers; infinities become None."""
        report = asdict(self)
        for described, edge in zip(report["edges"], self.edges, strict=True):
            described["noise_from"] = edge.noise_from
        return finite(report)


def finite(value: Any) -> Any:
    """Plain values without infinities and NaN, which become None."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(slots=True)
class _Edge:
    """Sums over one edge; `arriving` is the value that is rounded next."""

    dtype: QuantizedDType
    agreement: Agreement = field(default_factory=Agreement)
    rounding: Agreement = field(default_factory=Agreement)
    noise: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SOURCES, 0.0))
    cut: int = 0
    low: float = math.inf
    high: float = -math.inf
    arriving: np.ndarray | None = None
    seen: tuple[Histogram, Histogram] = field(default_factory=lambda: (Histogram(), Histogram()))

    def update(self, exact: np.ndarray, rounded: np.ndarray) -> None:
        """Take the float network's value and what the integers stand for."""
        x, self.arriving = self.arriving, None
        assert x is not None, "a value is rounded before it is compared"
        steps = np.rint(x / np.float32(self.dtype.only_scale)) + self.dtype.zero_point
        beyond = (steps < self.dtype.qmin) | (steps > self.dtype.qmax)
        error = (x.astype(np.float64) - rounded) ** 2
        self.cut += int(np.count_nonzero(beyond))
        self.noise["cut"] += float(error[beyond].sum())
        self.noise["steps"] += float(error[~beyond].sum())
        self.noise["earlier"] += float(((x.astype(np.float64) - exact) ** 2).sum())
        self.rounding.update(x, rounded)
        self.agreement.update(exact, rounded)
        self.low, self.high = min(self.low, float(exact.min())), max(self.high, float(exact.max()))
        for histogram, values in zip(self.seen, (exact, rounded), strict=True):
            histogram.update(np.ascontiguousarray(values))

    def bars(self) -> dict[str, Any]:
        """Both histograms in the same bars, over what was seen and what the integers hold."""
        ends = [(end - self.dtype.zero_point) * self.dtype.only_scale for end in (self.dtype.qmin, self.dtype.qmax)]
        low, high = min(self.low, ends[0]), max(self.high, ends[1])
        if not low < high < math.inf:
            return {}
        places = np.linspace(low, high, BARS + 1)
        kinds = {
            kind: np.histogram(one.centers, places, weights=one.counts)[0].astype(int).tolist()
            for kind, one in zip(("float", "integer"), self.seen, strict=True)
        }
        return {"low": low, "high": high, **kinds}


@kinds_named
def analyze(
    float_graph: InternalGraph, qdq_graph: InternalGraph, batches: Iterable[Any], *, progress: Progress | None = None
) -> Analysis:
    """Run both graphs on the batches and compare every rounded edge with its float value.

    `qdq_graph` is the quantize / dequantize form of the canonical `float_graph`, with the same node names; `progress`
    is called with ("analyze", batches done, None).
    """
    edges = {e.meta["edge"]: _Edge(e.attrs["dtype"]) for e in qdq_graph.exprs() if _is_rounding(e)}
    result, done, same = Agreement(), 0, []
    for arrays in as_batches(batches, float_graph):
        exact: dict[str, np.ndarray] = {}

        def keep(node: Any, value: Tensor, exact: dict = exact) -> None:
            if node.name in edges:
                exact[node.name] = value.numpy()

        def compare(node: Any, value: Tensor, exact: dict = exact) -> None:
            if node.name in edges:
                edges[node.name].arriving = value.numpy()
            elif "edge" in node.meta and isinstance(node.expr, Apply) and node.expr.record.dequantizes:
                name, rounded = node.meta["edge"], value.numpy()
                if exact[name].shape == rounded.shape:  # else the two networks count other elements
                    edges[name].update(exact.pop(name), rounded)

        inputs = as_tensors(arrays, float_graph)
        wanted = interpret(float_graph, inputs, on_value=keep)
        got = interpret(qdq_graph, inputs, on_value=compare)
        for a, b in zip(wanted, got, strict=True):
            if a.shape == b.shape:
                result.update(a.numpy(), b.numpy())
        same += same_places(wanted[0].numpy(), got[0].numpy())
        done += 1
        if progress is not None:
            progress("analyze", done, None)
    reports = tuple(_report(e, edges[e.meta["edge"]]) for e in qdq_graph.exprs() if _is_rounding(e))
    return Analysis(reports, result.sqnr_db, result.cosine, done, float(np.mean(same)) if same else None, len(same))


def same_places(exact: np.ndarray, other: np.ndarray) -> list[bool]:
    """For each row of two matrices, whether their largest values stand at the same place; none for other shapes."""
    if exact.ndim != 2 or exact.shape != other.shape or exact.shape[1] < 2:
        return []
    return (exact.argmax(1) == other.argmax(1)).tolist()


def _is_rounding(expr: Any) -> bool:
    return isinstance(expr, Apply) and expr.record.quantizes and "edge" in expr.meta


def _report(expr: Any, edge: _Edge) -> EdgeReport:
    dtype, source = edge.dtype, expr.inputs[0]
    scale, total = dtype.only_scale, sum(edge.noise.values())
    return EdgeReport(
        name=source.name,
        op=getattr(source.expr, "op", "input") or "input",
        module=str(source.expr.meta.get("module", "") or ""),
        dtype=dtype.name,
        scale=scale,
        zero_point=dtype.zero_point,
        sqnr_db=edge.agreement.sqnr_db,
        cosine=edge.agreement.cosine,
        cut=edge.cut / max(edge.agreement.count, 1),
        steps_sqnr_db=edge.rounding.sqnr_db,
        noise={key: value / total if total else 0.0 for key, value in edge.noise.items()},
        largest_error=edge.agreement.largest,
        observed=(edge.low, edge.high),
        representable=((dtype.qmin - dtype.zero_point) * scale, (dtype.qmax - dtype.zero_point) * scale),
        histogram=edge.bars(),
    )
