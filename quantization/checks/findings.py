"""Findings: which layer of a quantized network is at fault, and why; the guiltiest first.

Rounding alone leaves errors of known size: a step's square over twelve for each value. What exceeds that has a cause,
which shows in the numbers: values beyond a range, steps far larger than the values need, weights that are a multiple of
the float ones or the same in another order, a mean error that the bias makes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.checks.analysis import finite, ratio_db
from megengine.quantization.checks.norms import norm_findings
from megengine.quantization.checks.sensitivity import Noise, weight_rows
from megengine.quantization.checks.switching import BOUNDED, Sample, Switch, Switchboard
from megengine.quantization.ranges import Progress, as_batches
from megengine.traced_module.ir.expr import Apply, Input
from megengine.traced_module.ir.graph import InternalGraph

CAUSES = {
    "preprocessing": "the data is prepared in another way than the network or its calibration expects",
    "range": "the range is much wider than the values: most codes are never used",
    "clipping": "values lie beyond the range and are cut",
    "bias": "the bias shifts the result",
    "batch norm": "channels are scaled apart, as by a batch norm with other statistics",
    "layout": "the weights are the same numbers in another order",
    "scale": "the weights are a multiple of the float ones",
    "weights": "the weights differ from the float ones by more than rounding",
}
WIDE = 4.0  # times the steps that the values need
EXCESS = 10.0  # times the noise of rounding
BEYOND = 0.25  # of the range, by which a value has to lie beyond it
GAIN, GAIN_BOUNDED = 0.1, 3.0  # dB that a fault costs: more where a range leaves out values on purpose


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault: the layer (or edge, or input) at fault, the cause (a name of `CAUSES`), what was seen, and by how many
    dB the outputs gain if it is computed in float (None where quantization is not to blame).
    """

    layer: str
    cause: str
    text: str
    gain: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return finite(asdict(self))

    def __str__(self) -> str:
        gain = "" if self.gain is None else f" ({self.gain:+.1f} dB in float)"
        return f"{self.layer}: {self.cause}: {self.text}{gain}"


@dataclass(slots=True)
class EdgeSeen:
    """What an edge rounds on the float network's values."""

    dtype: QuantizedDType
    low: float = np.inf
    high: float = -np.inf
    count: int = 0
    cut: int = 0
    noise: float = 0.0
    beyond: float = 0.0

    def update(self, exact: np.ndarray, rounded: np.ndarray) -> None:
        """Take the values of one input, before and after rounding."""
        if not exact.size:
            return
        steps = np.rint(exact / np.float32(self.dtype.only_scale)) + self.dtype.zero_point
        out = (steps < self.dtype.qmin) | (steps > self.dtype.qmax)
        error = (exact - rounded) ** 2
        self.low, self.high = min(self.low, float(exact.min())), max(self.high, float(exact.max()))
        self.count += exact.size
        self.cut += int(np.count_nonzero(out))
        self.noise += float(error.sum())
        self.beyond += float(error[out].sum())

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest number that the integers stand for."""
        low, high = (
            (end - self.dtype.zero_point) * self.dtype.only_scale for end in (self.dtype.qmin, self.dtype.qmax)
        )
        return low, high

    @property
    def overshoot(self) -> float:
        """How far values lie beyond the range, as a part of it."""
        low, high = self.ends
        return max(self.high - high, low - self.low) / (high - low)

    @property
    def cut_share(self) -> float:
        """Part of the values beyond the range."""
        return self.cut / max(self.count, 1)


def needed_step(dtype: QuantizedDType, low: float, high: float) -> float:
    """The step with which integers of this form just hold the values."""
    low, high = min(low, 0.0), max(high, 0.0)
    if dtype.zero_point == dtype.qmin:
        return high / (dtype.qmax - dtype.qmin)
    if dtype.qmin < 0 and dtype.zero_point == 0:
        return max(high / dtype.qmax, -low / -dtype.qmin)
    return (high - low) / (dtype.qmax - dtype.qmin)


@dataclass(slots=True)
class _Bias:
    """Mean error of a layer by channel, before its bias."""

    total: np.ndarray | float = 0.0
    pictures: int = 0
    noise: Noise = field(default_factory=Noise)


@kinds_named
def diagnose(
    float_graph: InternalGraph,
    qdq_graph: InternalGraph,
    batches: Iterable[Any],
    *,
    source: InternalGraph | None = None,
    progress: Progress | None = None,
) -> tuple[Finding, ...]:
    """What is wrong with a quantized network, the guiltiest layer first; nothing for a healthy one.

    Args:
        float_graph, qdq_graph: as for `analyze`.
        batches: inputs, read twice.
        source: the float network of ops before canonicalization: its batch norms are compared with the data.
        progress: called with ("diagnose", batches done, None).
    """
    board, inputs = Switchboard(float_graph, qdq_graph), list(as_batches(batches, float_graph))
    edges = {name: EdgeSeen(e.inputs[0].expr.attrs["dtype"]) for name, e in board.edges.items()}
    biases = {switch.name: _Bias() for switch in board.switches if switch.kind == "bias"}
    for done, arrays in enumerate(inputs, 1):
        sample = board.sample(arrays)
        for name, edge in edges.items():
            edge.update(*sample.edge(name))
        for name, one in biases.items():
            _see_bias(one, board, sample, name)
        if progress is not None:
            progress("diagnose", done, None)
    found = _edge_faults(board, edges)
    for name in board.layers:
        found += _weight_faults(board, name)
    faulty = {switch.name for switch, *_ in found if switch.kind == "weights"}
    for name, one in biases.items():
        if board.owner(name) not in faulty and (text := _bias_fault(one, board, name)):
            found.append((Switch("bias", name), "bias", text))
    gains = _gains(board, inputs, [switch for switch, *_ in found])
    faults = [
        Finding(board.owner(switch.name), cause, text, gain)
        for (switch, cause, text), gain in zip(found, gains, strict=True)
        if cause == "preprocessing" or gain > (GAIN_BOUNDED if _is_bounded(board, switch) else GAIN)
    ]
    faults.sort(key=lambda one: (one.cause != "preprocessing", -(one.gain or 0.0)))
    norms = [] if source is None else [Finding(*one) for one in norm_findings(source, inputs)]
    return (*norms, *faults)


Fault = tuple[Switch, str, str]


def _is_bounded(board: Switchboard, switch: Switch) -> bool:
    """True for an edge whose range leaves out values on purpose."""
    return switch.kind == "activations" and BOUNDED in board.edges[switch.name].meta


def _edge_faults(board: Switchboard, edges: dict[str, EdgeSeen]) -> list[Fault]:
    ends: dict[tuple, tuple[float, float]] = {}  # of edges that share a scale
    for edge in edges.values():
        key = edge.dtype.only_scale, edge.dtype.zero_point
        low, high = ends.get(key, (np.inf, -np.inf))
        ends[key] = min(low, edge.low), max(high, edge.high)
    found: list[Fault] = []
    for name, edge in edges.items():
        made = board.edges[name].inputs[0].expr.inputs[0].expr
        if isinstance(made, Apply) and getattr(made.record.quant, "fixed", None) is not None:
            continue  # a function with a known range
        step = needed_step(edge.dtype, *ends[edge.dtype.only_scale, edge.dtype.zero_point])
        allowed = edge.count * step**2 / 12
        if not edge.count or not step:
            continue
        text = f"values {edge.low:.4g} … {edge.high:.4g}, range {edge.ends[0]:.4g} … {edge.ends[1]:.4g}"
        is_input = isinstance(made, Input)
        if edge.noise > EXCESS * allowed and edge.beyond > 0.5 * edge.noise and edge.overshoot > BEYOND:
            cause = "preprocessing" if is_input else "clipping"
            found.append((Switch("activations", name), cause, f"{edge.cut_share:.2%} are cut: {text}"))
        elif edge.dtype.only_scale > WIDE * step and BOUNDED not in board.edges[name].meta:
            cause = "preprocessing" if is_input else "range"
            text = f"steps are {edge.dtype.only_scale / step:.3g} times as large as needed: {text}"
            found.append((Switch("activations", name), cause, text))
    return found


def _weight_faults(board: Switchboard, name: str) -> list[Fault]:
    rows = weight_rows(board, name)
    if rows is None or not rows[0].size:
        return []
    exact, rounded = rows
    dtype = board.weight_of(name)[1].dtype
    scale = np.broadcast_to(np.asarray(dtype.scale, np.float64), (len(exact),))
    fault = _weight_fault(exact, rounded, scale, dtype)
    return [] if fault is None else [(Switch("weights", name), *fault)]


def _weight_fault(exact: np.ndarray, rounded: np.ndarray, scale: np.ndarray, dtype: Any) -> tuple[str, str] | None:
    """Cause and text for the weights of a layer as rows of channels."""
    error, power = (rounded - exact) ** 2, (exact**2).sum(axis=1)
    allowed = exact.shape[1] * float((scale**2).sum()) / 12
    total = float(error.sum())
    if total <= EXCESS * allowed or total <= 1e-4 * float(power.sum()):
        return _coarse(exact, scale, dtype)
    beyond = np.abs(exact) > (dtype.qmax + 0.5) * scale[:, None]
    if float(error[beyond].sum()) > 0.8 * total:
        return "clipping", f"{beyond.mean():.2%} of the weights lie beyond their range"
    used = power > 0
    factors = (rounded[used] * exact[used]).sum(axis=1) / power[used]
    left = float(((rounded[used] - factors[:, None] * exact[used]) ** 2).sum())
    if left < 0.1 * total + 4 * allowed:
        low, middle, high = factors.min(), float(np.median(factors)), factors.max()
        blur = 3 * scale[used] / np.sqrt(12 * power[used])  # by rounding, for channels of few steps
        wrong = float(np.mean(np.abs(factors - 1) > 0.02 + blur))
        if np.all(np.abs(factors - middle) < 0.05 * abs(middle) + blur) or wrong < 0.1:
            text = f"the weights are {middle:.3g} times the float ones ({wrong:.0%} of the channels)"
            return "scale", text
        return "batch norm", f"channels are {low:.3g} to {high:.3g} times the float ones"
    resorted = (np.sort(rounded, axis=None) - np.sort(exact, axis=None)) ** 2
    if float(resorted.sum()) < 0.1 * total:
        return "layout", "the same numbers in another order"
    return "weights", f"they differ by {ratio_db(float(power.sum()), total):.1f} dB, and by no factor"


def _coarse(exact: np.ndarray, scale: np.ndarray, dtype: Any) -> tuple[str, str] | None:
    reach = np.abs(exact).max(axis=1)
    needed = reach / dtype.qmax if dtype.axis is not None else np.full(len(reach), reach.max() / dtype.qmax)
    used = needed > 0
    times = float(np.median(scale[used] / needed[used])) if used.any() else 1.0
    return None if times <= WIDE else ("range", f"steps of the weights are {times:.3g} times as large as needed")


def _see_bias(one: _Bias, board: Switchboard, sample: Sample, name: str) -> None:
    layer = board.owner(name)
    if layer not in sample.board.layers:
        return
    exact, rounded = sample.layer(layer), sample.layer(layer, "weights", "activations")
    channel = exact.ndim - 1 if board.layers[layer].record.rows else 1
    axes = tuple(i for i in range(exact.ndim) if i != channel)
    one.total = one.total + (rounded.astype(np.float64) - exact).mean(axis=axes)
    one.pictures += 1
    one.noise.add([exact], [rounded])


def _bias_fault(one: _Bias, board: Switchboard, name: str) -> str:
    """What a bias does to the mean of its layer; "" for one that makes it better, as bias correction does."""
    node = next(n for n, (switch, _) in board.constants.items() if switch == Switch("bias", name))
    exact = board.constants[node][1].numpy().astype(np.float64).reshape(-1)
    shift = board.rounded.node(node).expr.value.numpy().astype(np.float64).reshape(-1) - exact
    if not one.pictures or not one.noise.signal:
        return ""
    mean = np.broadcast_to(np.asarray(one.total) / one.pictures, shift.shape)
    before, after = float((mean**2).sum()), float(((mean + shift) ** 2).sum())
    values = one.noise.count / shift.size
    if after <= 4 * before or after * values <= max(0.5 * one.noise.noise, 1e-4 * one.noise.signal):
        return ""
    reach = np.abs(exact).max(initial=0.0)
    return f"channels are shifted by up to {np.abs(shift).max():.4g}; the biases reach {reach:.4g}"


def _gains(board: Switchboard, inputs: Sequence[Any], switches: Sequence[Switch]) -> list[float]:
    """What the outputs gain in dB by each edge in float, or by all constants of a layer in float."""
    constants = [switch for switch in board.switches if switch.kind != "activations"]
    owners = {switch: board.owner(switch.name) for switch in constants}
    alike = {switch: [one for one in constants if owners[one] == owners[switch]] for switch in constants}
    total, freed = Noise(), [Noise() for _ in switches]
    for arrays in inputs if switches else ():
        sample = board.sample(arrays)
        total.add(sample.exact, sample.rounded)
        for noise, switch in zip(freed, switches, strict=True):
            noise.add(sample.exact, sample.turned_off(alike.get(switch, [switch])))
    return [noise.sqnr_db - total.sqnr_db if noise.noise != total.noise else 0.0 for noise in freed]
