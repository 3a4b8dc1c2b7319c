"""Cross-layer equalization: channels between layers are scaled so that all use the whole range of integers.

A factor of a channel behind a convolution passes through what follows (`tied`); the next convolution divides by it
(Nagel et al. 2019; here also across residuals, whose sums tie the results of several layers). Of some candidates, the
factors are taken that leave the least noise at the outputs of the layers behind, by a model: rounding of the values
between the layers and of the weights on both sides. The network computes what it did; only values behind a ReLU6 that
far exceed all that calibration saw in their channel may be cut.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.spec import Plain
from megengine.quantization.pipeline.tied import Tied, tied_values
from megengine.quantization.ranges import TensorStatistics, scheme
from megengine.traced_module.editing.rewiring import set_inputs
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

MARGIN = 2.0  # room above the largest value seen in a channel before a ReLU6 cuts it
LARGEST = 8.0  # factor: a channel that hardly spoke in calibration may do so later
GAIN = 0.5  # noise that is left at most, as a part of what there was: little gain is not worth the room
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
_TINY = 1e-300


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
    graph: InternalGraph, stats: dict[str, TensorStatistics], annotation: Annotation
) -> tuple[InternalGraph, int]:
    """A copy with equalized layers, all names as they are, and the number of places that were changed.

    Args:
        graph: canonical float graph.
        stats: statistics of its edges; values without are left.
        annotation: which edges and weights become integers, and of how many bits.
    """
    constants, places = _Constants(), 0
    for tied in tied_values(graph):
        sources = {e.inputs[0].name for e in (*tied.writers, *tied.readers)}
        rounded = {n.name for n in tied.nodes if isinstance(annotation.edges.get(n.name), Plain)}
        if all(n in stats and stats[n].channel_maximum is not None for n in rounded | sources):
            factors = _Factors(tied, constants, stats, annotation).best()
            if not np.allclose(factors, 1.0):
                _scale(tied, constants, factors)
                places += 1
    return with_constants(graph, constants.changed), places


def with_constants(graph: InternalGraph, constants: dict[tuple[str, int], np.ndarray]) -> InternalGraph:
    """A copy with other constants, by name of the op's output node and place."""
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


def _by_input_channel(w: np.ndarray, groups: int) -> np.ndarray:
    """A weight as [input channels, outputs of the channel, taps]."""
    if groups == 1:
        return w.transpose(1, 0, 2, 3).reshape(w.shape[1], w.shape[0], -1)
    return w.reshape(groups, w.shape[0] // groups, -1)


@dataclass(frozen=True, slots=True)
class WeightIntegers:
    """The integers of a weight: the largest one, infinite for a weight in float, and whether channels have scales."""

    highest: float
    per_channel: bool

    @classmethod
    def of(cls, layer: Apply, annotation: Annotation) -> WeightIntegers:
        spec = annotation.weights.get(layer.output.name)
        return cls(np.inf, True) if spec is None else cls(scheme(spec.scheme).qmax, spec.axis is not None)

    def steps(self, largest: np.ndarray) -> np.ndarray:
        """The step of each channel, by the largest weights of the channels."""
        return (largest if self.per_channel else largest.max()) / self.highest


@dataclass(frozen=True, slots=True)
class WeightReader:
    """A layer that reads tied values: its weight [input channels, outputs of the channel, taps], the mean square of its
    input by channel, and the integers of the weight.
    """

    weight: np.ndarray
    energy: np.ndarray
    depthwise: bool
    integers: WeightIntegers

    @property
    def signal(self) -> float:
        """The power of its result, if channels were independent."""
        return max(float((self.energy[:, None, None] * self.weight**2).sum()), _TINY)

    def noise(self, factors: np.ndarray, arriving: np.ndarray) -> float:
        """Twelve times the noise relative to the signal: what arrives in each channel, and rounding of the weight."""
        scaled = np.abs(self.weight) / factors[:, None, None]
        # scales of output channels: of one input channel each, or of all
        largest = scaled.max(axis=2) if self.depthwise else scaled.max(axis=(0, 2))[None, :]
        steps = np.broadcast_to(self.integers.steps(largest), scaled.shape[:2])
        energy = factors**2 * self.energy * scaled.shape[2]
        total = ((scaled**2).sum(axis=(1, 2)) * arriving).sum() + (steps**2 * energy[:, None]).sum()
        return float(total) / self.signal


class _Factors:
    """Candidates of the factors of tied channels, and the noise that each leaves."""

    def __init__(
        self,
        tied: Tied,
        constants: _Constants,
        stats: dict[str, TensorStatistics],
        annotation: Annotation,
    ) -> None:
        self.tied, self.rounded, self.readers, self.writers = tied, [], [], []
        for node in tied.nodes:
            if isinstance(spec := annotation.edges.get(node.name), Plain):
                self.rounded.append((largest_values(stats[node.name]), scheme(spec.scheme).steps, tied.reached(node)))
        self.read = [largest_values(stats[layer.inputs[0].name]) for layer in tied.readers]
        for layer in tied.readers:
            groups, energy = layer.attrs["groups"], energies(stats[layer.inputs[0].name])
            weight = _by_input_channel(constants.of(layer), groups)
            self.readers.append(WeightReader(weight, energy, groups > 1, WeightIntegers.of(layer, annotation)))
        for layer in tied.writers:
            w = constants.of(layer)
            rows = np.abs(w).reshape(len(w), -1).max(axis=1)
            noise = float(w[0].size * energies(stats[layer.inputs[0].name]).mean())
            self.writers.append((rows, WeightIntegers.of(layer, annotation), noise, tied.reached(layer.output)))

    def best(self) -> np.ndarray:
        """The candidate with the least noise; 1 where little is gained."""
        candidates = self._candidates()
        best = min(candidates, key=self._noise)
        ones = np.ones_like(best)
        return best if self._noise(best) < GAIN * self._noise(ones) else ones

    def _candidates(self) -> list[np.ndarray]:
        limit, seen = self.tied.limit, [x for x, *_ in self.rounded] or self.read
        if np.isfinite(limit):
            reach = np.max([np.minimum(x * MARGIN, limit) for x in seen], axis=0) / limit
        else:
            reach = np.max([x / max(x.max(), _TINY) for x in seen], axis=0)
        ones = np.ones_like(reach)
        spread = np.divide(1.0, reach, out=ones.copy(), where=reach > 0)
        first = np.max([rows for rows, *_ in self.writers], axis=0)
        second = np.max([np.abs(r.weight).max(axis=(1, 2)) for r in self.readers], axis=0)
        balance = np.sqrt(np.divide(second, first, out=ones.copy(), where=(first > 0) & (second > 0)))
        balance /= np.exp(np.log(balance).mean())
        per_channel = all(one.per_channel for _, one, *_ in self.writers)
        found = [spread**a * balance**b for a in STRENGTHS for b in ((0.0,) if per_channel else STRENGTHS)]
        if np.isfinite(limit):
            found = [np.clip(one, 1.0, np.maximum(spread, 1.0)) for one in found]
        return [np.where(reach > 0, np.clip(one, 1 / LARGEST, LARGEST), 1.0) for one in found]

    def _noise(self, factors: np.ndarray) -> float:
        """Twelve times the noise that factors leave, of steps at values of uniform distribution (step**2 / 12)."""
        arriving = np.zeros((len(self.readers), len(factors)))
        for largest, steps, reached in self.rounded:
            step = np.minimum(largest * factors, self.tied.limit).max() / steps
            arriving[list(reached)] += step**2
        for rows, integers, noise, reached in self.writers:
            arriving[list(reached)] += integers.steps(rows * factors) ** 2 * noise
        return sum(reader.noise(factors, one) for reader, one in zip(self.readers, arriving, strict=True))


def largest_values(one: TensorStatistics) -> np.ndarray:
    """The largest magnitude in each channel, float64."""
    assert one.channel_minimum is not None and one.channel_maximum is not None
    return np.maximum(np.abs(one.channel_minimum), np.abs(one.channel_maximum)).astype(np.float64)


def energies(one: TensorStatistics) -> np.ndarray:
    """Mean square of the values of each channel: that of all values, divided as the squares of the largest are."""
    h, squares = one.histogram, largest_values(one) ** 2
    mean = float(h.counts @ h.centers**2) / max(int(h.counts.sum()), 1)
    return squares * (mean / max(float(squares.mean()), 1e-300))


def _scale(tied: Tied, constants: _Constants, factors: np.ndarray) -> None:
    shape = (-1, 1, 1, 1)
    for layer in tied.writers:
        constants.multiply(layer, 1, factors.reshape(shape))
        if len(layer.inputs) > 2:
            constants.multiply(layer, 2, factors)
    for layer in tied.readers:
        inverse, groups = 1 / factors, layer.attrs["groups"]
        each = layer.inputs[1].spec.shape[0] // groups
        by_output = np.repeat(inverse, each).reshape(shape)
        constants.multiply(layer, 1, inverse.reshape(1, -1, 1, 1) if groups == 1 else by_output)
