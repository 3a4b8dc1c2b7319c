"""Cross-layer equalization: channels between two layers are scaled so that all use the whole range of integers.

A factor of a channel behind a convolution passes through ReLU and, as far as nothing is cut, through ReLU6; the next
convolution divides by it (Nagel et al. 2019). Of some candidates, the factors are taken that leave the least noise at
the output of the second layer, by a model: rounding of the values between the layers and of both weights. The network
computes what it did; only values behind a ReLU6 that far exceed all that calibration saw in their channel may be cut.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from megengine.quantization.ranges import TensorStatistics
from megengine.traced_module.editing.rewiring import set_inputs
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

MARGIN = 2.0  # room above the largest value seen in a channel before a ReLU6, or the last integer, cuts it
LARGEST = 4.0  # factor: a channel that hardly spoke in calibration may do so later
GAIN = 0.5  # noise that is left at most, as a part of what there was: little gain is not worth the room
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, slots=True)
class Pair:
    """A convolution whose channels, behind a clamp from 0 up to `limit` (infinite: none), only convolutions read."""

    first: Apply
    between: TensorNode
    readers: tuple[Apply, ...]
    limit: float


@dataclass(frozen=True, slots=True)
class _Constants:
    """Weights and biases of layers as they are so far; `changed` by name of the layer's output node and place."""

    changed: dict[tuple[str, int], np.ndarray] = field(default_factory=dict)

    def of(self, layer: Apply, at: int = 1) -> np.ndarray:
        """A constant in float64."""
        changed = self.changed.get((layer.output.name, at))
        return (layer.inputs[at].expr.value.numpy() if changed is None else changed).astype(np.float64)

    def multiply(self, layer: Apply, at: int, factors: np.ndarray) -> None:
        self.changed[layer.output.name, at] = (self.of(layer, at) * factors).astype(np.float32)


def equalized(
    graph: InternalGraph, stats: dict[str, TensorStatistics], *, per_channel: bool
) -> tuple[InternalGraph, int]:
    """A copy with equalized layers, all names as they are, and the number of pairs that were changed.

    Args:
        graph: canonical float graph.
        stats: statistics of its edges; pairs without are left.
        per_channel: weights get a scale for every output channel.
    """
    constants, pairs = _Constants(), 0
    for pair in _pairs(graph, stats):
        factors = _factors(pair, constants, stats, per_channel=per_channel)
        if not np.allclose(factors, 1.0):
            _scale(pair, constants, factors)
            pairs += 1
    return _with_constants(graph, constants.changed), pairs


def _with_constants(graph: InternalGraph, constants: dict[tuple[str, int], np.ndarray]) -> InternalGraph:
    g = graph.clone()
    layers = {e.outputs[0].name: e for e in g.exprs() if isinstance(e, Apply)}
    for (name, at), value in constants.items():
        layer = layers[name]
        old, new = layer.inputs[at], g.constant(value, before=layer)
        set_inputs(layer, (*layer.inputs[:at], new, *layer.inputs[at + 1 :]))
        if not old.users:
            g.erase(old.expr)
            g.rename(new, old.name)
    return g


def _pairs(graph: InternalGraph, stats: dict[str, TensorStatistics]) -> Iterator[Pair]:
    for expr in graph.exprs():
        if not isinstance(expr, Apply) or not _is_layer(expr):
            continue
        node, limit = expr.outputs[0], np.inf
        while len(node.users) == 1 and isinstance(clamp := node.users[0], Apply):
            bounds = clamp.record.rule.bounds(clamp.attrs)
            if bounds is None or bounds[0] not in (None, 0.0) or (bounds[1] is not None and bounds[1] <= 0):
                break
            node, limit = clamp.output, min(limit, np.inf if bounds[1] is None else bounds[1])
        readers = tuple(u for u in node.users if _is_layer(u) and u.inputs[0] is node and _by_channel(u))
        observed = all(n.name in stats and stats[n.name].channel_maximum is not None for n in (node, expr.inputs[0]))
        if readers and len(readers) == len(node.users) and node not in graph.outputs and observed:
            yield Pair(expr, node, readers, limit)


def _is_layer(expr: object) -> bool:
    """True for a convolution with constant weight and bias."""
    constants = expr.inputs[1:] if isinstance(expr, Apply) and expr.record.rule.convolves else ()
    return bool(constants) and all(isinstance(n.expr, Constant) for n in constants)


def _by_channel(layer: Apply) -> bool:
    """True if each input channel meets weights of its own: a convolution without groups, or a depthwise one."""
    return layer.attrs["groups"] == 1 or layer.inputs[1].spec.shape[1] == 1


def _by_input_channel(w: np.ndarray, groups: int) -> np.ndarray:
    """A weight as [input channels, outputs of the channel, taps]."""
    if groups == 1:
        return w.transpose(1, 0, 2, 3).reshape(w.shape[1], w.shape[0], -1)
    return w.reshape(groups, w.shape[0] // groups, -1)


def _factors(pair: Pair, constants: _Constants, stats: dict[str, TensorStatistics], *, per_channel: bool) -> np.ndarray:
    """The factor of each channel, of some candidates the one with the least noise; 1 where nothing is gained."""
    largest = _largest(stats[pair.between.name])
    reach = np.minimum(largest * MARGIN, pair.limit)
    top = pair.limit if np.isfinite(pair.limit) else reach.max(initial=0.0)
    ones = np.ones_like(largest)
    spread = np.divide(top, reach, out=ones.copy(), where=reach > 0)
    first = np.abs(constants.of(pair.first)).reshape(len(largest), -1).max(axis=1)
    weights = [_by_input_channel(constants.of(layer), layer.attrs["groups"]) for layer in pair.readers]
    second = np.max([np.abs(w).max(axis=(1, 2)) for w in weights], axis=0)
    balance = np.sqrt(np.divide(second, first, out=ones.copy(), where=(first > 0) & (second > 0)))
    balance /= np.exp(np.log(balance).mean())
    noise = _Noise(pair, weights, first, stats[pair.between.name], stats[pair.first.inputs[0].name], per_channel)
    candidates = [spread**a * balance**b for a in STRENGTHS for b in ((0.0,) if per_channel else STRENGTHS)]
    if np.isfinite(pair.limit):
        candidates = [np.clip(one, 1.0, np.maximum(spread, 1.0)) for one in candidates]
    candidates = [np.where(reach > 0, np.clip(one, 1 / LARGEST, LARGEST), 1.0) for one in candidates]
    best = min(candidates, key=noise.with_factors)
    return best if noise.with_factors(best) < GAIN * noise.with_factors(ones) else ones


def _largest(one: TensorStatistics) -> np.ndarray:
    assert one.channel_minimum is not None and one.channel_maximum is not None
    return np.maximum(np.abs(one.channel_minimum), np.abs(one.channel_maximum)).astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Noise:
    """Noise at the outputs of a pair's readers, of steps at values of uniform distribution (variance step**2 / 12)."""

    pair: Pair
    weights: list[np.ndarray]
    first: np.ndarray
    between: TensorStatistics
    source: TensorStatistics
    per_channel: bool

    def with_factors(self, factors: np.ndarray) -> float:
        """Twelve times the noise that factors of the channels leave."""
        step = np.minimum(_largest(self.between) * factors, self.pair.limit).max() / 255
        rows = factors * self.first
        taps = self.pair.first.inputs[1].spec.size / len(factors)
        arriving = (
            step**2 + ((rows if self.per_channel else rows.max()) / 127) ** 2 * taps * _energy(self.source).mean()
        )
        energy = factors**2 * _energy(self.between)
        total = 0.0
        for layer, w in zip(self.pair.readers, self.weights, strict=True):
            scaled = np.abs(w) / factors[:, None, None]
            depthwise = layer.attrs["groups"] > 1
            # scales of output channels: of one input channel each, or of all
            largest = scaled.max(axis=2) if depthwise else np.broadcast_to(scaled.max(axis=(0, 2)), scaled.shape[:2])
            steps = (largest if self.per_channel else scaled.max()) / 127 * np.ones(scaled.shape[:2])
            total += float(((scaled**2).sum(axis=(1, 2)) * arriving).sum())
            total += float((steps**2 * (energy * w.shape[2])[:, None]).sum())
        return total


def _energy(one: TensorStatistics) -> np.ndarray:
    """Mean square of the values of each channel: that of all values, divided as the squares of the largest are."""
    h, squares = one.histogram, _largest(one) ** 2
    mean = float(h.counts @ h.centers**2) / max(int(h.counts.sum()), 1)
    return squares * (mean / max(float(squares.mean()), 1e-300))


def _scale(pair: Pair, constants: _Constants, factors: np.ndarray) -> None:
    shape = (-1, 1, 1, 1)
    constants.multiply(pair.first, 1, factors.reshape(shape))
    if len(pair.first.inputs) > 2:
        constants.multiply(pair.first, 2, factors)
    for layer in pair.readers:
        inverse, groups = 1 / factors, layer.attrs["groups"]
        each = layer.inputs[1].spec.shape[0] // groups
        by_output = np.repeat(inverse, each).reshape(shape)
        constants.multiply(layer, 1, inverse.reshape(1, -1, 1, 1) if groups == 1 else by_output)
