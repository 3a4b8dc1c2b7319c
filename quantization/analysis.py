"""Analysis: how far the integer network is from the float one, edge by edge."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.quantization.calibrate import Progress, as_batches
from megengine.quantization.match import is_op
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.graph import InternalGraph


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
        """Take one batch of both."""
        a, b = exact.reshape(-1).astype(np.float64), approximate.reshape(-1).astype(np.float64)
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
        if not self.noise:
            return math.inf
        return 10 * math.log10(self.signal / self.noise) if self.signal else -math.inf

    @property
    def cosine(self) -> float:
        """Cosine similarity."""
        scale = math.sqrt(self.signal * self.other)
        return self.product / scale if scale else 1.0


@dataclass(frozen=True, slots=True)
class EdgeReport:
    """What analysis found on one integer edge."""

    name: str
    op: str
    module: str
    dtype: str
    scale: float
    zero_point: int
    sqnr_db: float
    cosine: float
    saturation: float
    largest_error: float
    observed: tuple[float, float]
    representable: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Analysis:
    """Result of `analyze`: every edge in execution order, and the outputs of the network."""

    edges: tuple[EdgeReport, ...]
    output_sqnr_db: float
    output_cosine: float
    batches: int
    floating: dict[str, str] = field(default_factory=dict)

    def worst(self, count: int = 10) -> tuple[EdgeReport, ...]:
        """Edges with the lowest SQNR first."""
        return tuple(sorted(self.edges, key=lambda e: e.sqnr_db)[:count])

    def to_json(self) -> dict[str, Any]:
        """Plain dicts, lists and numbers; infinities become None."""
        return _finite(asdict(self))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@dataclass(slots=True)
class _Edge:
    agreement: Agreement = field(default_factory=Agreement)
    saturated: int = 0
    values: int = 0
    low: float = math.inf
    high: float = -math.inf


def analyze(
    float_graph: InternalGraph,
    qdq_graph: InternalGraph,
    batches: Iterable[Any],
    *,
    floating: dict[str, str] | None = None,
    progress: Progress | None = None,
) -> Analysis:
    """Run both graphs on the batches and compare every rounded edge with its float value.

    Args:
        float_graph: the fused float graph.
        qdq_graph: its quantize / dequantize form, with the same node names.
        batches: inputs, as for calibration.
        floating: layers left in float and why, passed on to the report.
        progress: called with ("analyze", batches done, None).
    """
    edges = {e.meta["edge"]: _Edge() for e in qdq_graph.exprs() if _is_rounding(e)}
    result, done = Agreement(), 0
    for arrays in as_batches(batches, float_graph):
        exact: dict[str, np.ndarray] = {}

        def keep(node: Any, value: Tensor, exact: dict = exact) -> None:
            if node.name in edges:
                exact[node.name] = value.numpy()

        def compare(node: Any, value: Tensor, exact: dict = exact) -> None:
            _compare(edges, exact, node, value)

        wanted = interpret(float_graph, [Tensor(a) for a in arrays], on_value=keep)
        got = interpret(qdq_graph, [Tensor(a) for a in arrays], on_value=compare)
        for a, b in zip(_tensors(wanted), _tensors(got), strict=True):
            result.update(a.numpy(), b.numpy())
        done += 1
        if progress is not None:
            progress("analyze", done, None)
    reports = tuple(_report(e, edges[e.meta["edge"]]) for e in qdq_graph.exprs() if _is_rounding(e))
    return Analysis(reports, result.sqnr_db, result.cosine, done, dict(floating or {}))


def _tensors(outputs: Any) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def _is_rounding(expr: Any) -> bool:
    return is_op(expr, "quantize") and "edge" in expr.meta


def _compare(edges: dict[str, _Edge], exact: dict[str, np.ndarray], node: Any, value: Tensor) -> None:
    name = node.meta.get("edge")
    if name is None or node.name == name:
        return
    edge = edges[name]
    if is_op(node.expr, "dequantize") and name in exact:
        float_value = exact.pop(name)
        edge.agreement.update(float_value, value.numpy())
        edge.low, edge.high = min(edge.low, float(float_value.min())), max(edge.high, float(float_value.max()))
    elif is_op(node.expr, "quantize"):
        q = value.numpy()
        dtype = node.spec.dtype
        low_end = dtype.qmin if dtype.qmin != dtype.zero_point else dtype.qmin - 1
        edge.saturated += int(np.count_nonzero((q == dtype.qmax) | (q == low_end)))
        edge.values += q.size


def _report(expr: Any, edge: _Edge) -> EdgeReport:
    dtype: QuantizedDType = expr.attrs["dtype"]
    source = expr.inputs[0]
    scale = float(dtype.scale)  # type: ignore[arg-type]
    ends = ((dtype.qmin - dtype.zero_point) * scale, (dtype.qmax - dtype.zero_point) * scale)
    return EdgeReport(
        name=source.name,
        op=getattr(source.expr, "op", "input") or "input",
        module=str(source.expr.meta.get("module", "") or ""),
        dtype=dtype.name,
        scale=scale,
        zero_point=dtype.zero_point,
        sqnr_db=edge.agreement.sqnr_db,
        cosine=edge.agreement.cosine,
        saturation=edge.saturated / max(edge.values, 1),
        largest_error=edge.agreement.largest,
        observed=(edge.low, edge.high),
        representable=ends,
    )
