"""GPTAQ: layers are rounded one after the other, each for the inputs that the rounded layers before it give.

Every layer should give the result of the float network, although its own input is already off (GPTAQ, Li et al. 2025).
So before its weight is rounded (`gptq`), it moves to the one of least squares: the float results by the integers that
reach the layer, with a ridge that draws it to the float weight. Two halves of the samples choose the ridge, each by the
error on the other. Where a residual is added to the layer's result, its error is part of what the layer makes up for.
Products are those of the inputs themselves, not of what they differ from their means: other inputs will have other
means, so the bias, which takes the mean of what is left, should have little to take.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, known_quantized
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.freeze import Frozen, QuantizedWeight, in_steps, real_weight
from megengine.quantization.pipeline.gptq import as_rows, damped, rounded, takes
from megengine.quantization.pipeline.layer_regions import layer_regions
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.pipeline.moments import results_of, windows_of
from megengine.quantization.pipeline.walk import Place, Walk
from megengine.quantization.ranges import Batch, Progress, as_samples, sample_number
from megengine.tensor import Tensor
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

SAMPLES = 256  # at most, which stay in memory
LEAST = 16  # samples that choose weights, before some may be kept for judging
MEMORY = 400 << 20  # bytes of values between layers, in all samples: where they are more, ops run again
RIDGES = (0.03, 0.3, 3.0, 30.0)  # of the mean variance
CAUTION = 10.0  # times the ridge that the halves choose: what will come differs more than they do
DAMPING = 0.1  # of the mean variance, added to every variance where a weight is rounded
FINE = 32  # bits of products, so that sums of 2**21 are exact: they do not depend on the order

Moments = tuple[np.ndarray, np.ndarray]  # mean products of inputs with inputs, and of results with inputs


def drawn(data: Iterable[Any], graph: InternalGraph, judging: Sequence[Batch]) -> list[Batch]:
    """Those with the smallest `sample_number`, in its order; those that judge are left out if enough others stay."""
    kept: dict[int, Batch] = {}
    for sample in as_samples(data, graph):
        number = sample_number(sample)
        if number not in kept:
            kept[number] = tuple(np.array(a) for a in sample)
            if len(kept) > SAMPLES + len(judging):
                del kept[max(kept)]
    judges = {sample_number(one) for one in judging}
    others = [number for number in kept if number not in judges]
    numbers = others if len(others) >= LEAST else kept
    return [kept[number] for number in heapq.nsmallest(SAMPLES, numbers)]


@dataclass(slots=True)
class Joint:
    """Sums over what a layer multiplies with its weight (x, K values in steps of its input) and over the float results
    that it should give (y, in steps of `unit`, without the bias), apart for each half of the samples.

    Float64; all terms are integers, and so small that sums are exact.
    """

    layer: Apply
    scale: float
    unit: float
    count: list[int] = field(default_factory=lambda: [0, 0])
    sums: list[Any] = field(default_factory=lambda: [[0.0] * 4, [0.0] * 4])

    def update(self, half: int, x: np.ndarray, y: np.ndarray) -> None:
        """Take integers [groups, places, K] and real results [groups, places, rows]."""
        x, y = x.astype(np.float64), np.rint(y.astype(np.float64) / self.unit)
        terms = x.swapaxes(1, 2) @ x, y.swapaxes(1, 2) @ x, x.sum(axis=1), y.sum(axis=1)
        self.sums[half] = [a + b for a, b in zip(self.sums[half], terms, strict=True)]
        self.count[half] += x.shape[1]

    def moments(self, *halves: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mean products of x with x and of y with x, and the means of both, real numbers. One half may be empty."""
        n = sum(self.count[h] for h in halves)
        xx, yx, x, y = (np.asarray(sum(self.sums[h][i] for h in halves)) / n for i in range(4))
        return xx * self.scale**2, yx * (self.unit * self.scale), x * self.scale, y * self.unit


def compensated(weight: np.ndarray, joint: Joint) -> np.ndarray:
    """The real weight [groups, rows, K] that gives the wanted results with the inputs that are there.

    `weight` itself if no ridge gains on the samples that did not choose.
    """
    parts = [joint.moments(half)[:2] for half in range(2)] if all(joint.count) else []
    errors = [sum(_gain(weight, one, other, r) for one, other in (parts, parts[::-1])) for r in RIDGES if parts]
    if not errors or min(errors) >= 0:
        return weight
    return weight + _change(weight, joint.moments(0, 1)[:2], RIDGES[int(np.argmin(errors))] * CAUTION)


def _change(weight: np.ndarray, moments: Moments, ridge: float) -> np.ndarray:
    c, cross = moments
    wanted = (cross - weight @ c).swapaxes(1, 2)
    return np.linalg.solve(damped(c, ridge), wanted).swapaxes(1, 2)


def _gain(weight: np.ndarray, one: Moments, other: Moments, ridge: float) -> float:
    """What the change that some samples ask for adds to the squared error on others."""
    change, (c, cross) = _change(weight, one, ridge), other
    return float(((change @ c) * change - 2 * change * (cross - weight @ c)).sum())


def rounded_in_turn(
    graph: InternalGraph,
    annotation: Annotation,
    frozen: Frozen,
    samples: Sequence[Batch],
    *,
    biases: bool,
    learned: bool = False,
    progress: Progress | None = None,
) -> Frozen:
    """Integers of weights, and with `biases` the biases that suit them.

    Weights that `gptq` does not take, and those whose input stays in float, are as before. `learned`: by AdaRound.
    """
    turn = _Turn(graph, annotation, frozen, samples, learned=learned)
    for number, name in enumerate(turn.order, 1):
        turn.round(name, biases=biases)
        if progress is not None:
            progress("adaround" if learned else "gptaq", number, len(turn.order))
    return replace(frozen, weights=turn.weights, biases=turn.biases)


class _Turn:
    """The float network and the one in integers, with weights in float from the layer on that comes next."""

    def __init__(
        self,
        graph: InternalGraph,
        annotation: Annotation,
        frozen: Frozen,
        samples: Sequence[Batch],
        *,
        learned: bool,
    ) -> None:
        self.annotation, self.weights, self.biases = annotation, dict(frozen.weights), dict(frozen.biases)
        self.learned = learned
        self.exact = Walk(graph)
        self.ops = {e.outputs[0].name: e for e in self.exact.exprs if isinstance(e, Apply)}
        others = {name: weight for name, weight in self.weights.items() if not takes(self.ops[name])}
        self.integer = Walk(materialize(graph, replace(frozen, weights=others)))
        self.nodes = {n.name: n for n in self.integer.graph.nodes() if isinstance(n, TensorNode)}
        rounded_edges = (e for e in self.integer.exprs if isinstance(e, Apply) and e.record.dequantizes)
        self.real = {str(e.meta.get("edge")): e.output for e in rounded_edges}
        self.residuals = {r.layer.output.name: r.residual for r in layer_regions(graph, annotation).values()}
        taken = self.weights.keys() - others.keys()
        found = (name for name in taken if self._input(name) and self._is_whole(name))
        self.order = sorted(found, key=self.exact.index.__getitem__)
        for name in taken.difference(self.order):
            self.integer.given[name, 1] = Tensor(np.ascontiguousarray(real_weight(self.ops[name], self.weights[name])))
        self.places = [(self.exact.start(x), self.integer.start(x)) for x in samples]

    def _is_whole(self, name: str) -> bool:
        return self.weights[name].values.shape == self.ops[name].inputs[1].shape

    def _input(self, name: str) -> QuantizedDType | None:
        """The dtype of the integers that a layer reads."""
        made = self.nodes[name].expr
        made = made.inputs[0].expr if isinstance(made, Apply) else made
        is_real = isinstance(made, Apply) and made.record.dequantizes
        return known_quantized(made.inputs[0].spec.dtype) if is_real else None

    def round(self, name: str, *, biases: bool) -> None:
        """Choose a layer's weight and bias, with which the layers behind it are reached."""
        layer, dtype = self.ops[name], self._input(name)
        assert dtype is not None
        weight = as_rows(layer, layer.inputs[1].expr.value.numpy())
        joint = self._joint(layer, dtype, weight)
        if not sum(joint.count):
            return
        c, _, x, y = joint.moments(0, 1)
        target, nearest = compensated(weight, joint), self.weights[name]
        found = rounded(layer, target, damped(c, DAMPING), nearest, learned=self.learned)
        self.weights[name] = found
        real = np.ascontiguousarray(real_weight(layer, found))
        self.integer.given[name, 1] = Tensor(real)
        if biases:
            left = y - np.einsum("grk,gk->gr", as_rows(layer, real), x)
            self._set_bias(name, left.reshape(-1), dtype, found)

    def _set_bias(self, name: str, left: np.ndarray, data: QuantizedDType, weight: QuantizedWeight) -> None:
        """Add the mean of what is left."""
        place = self.annotation.biases.get(name)
        if place is None:
            return
        owner, at = self.ops[place[0]], place[1]
        old = owner.inputs[at].expr.value.numpy() if at < len(owner.inputs) else np.zeros(len(left), np.float32)
        if old.size == left.size:
            bias = (old.reshape(-1) + left).astype(np.float32).reshape(old.shape)
            self.biases[place] = in_steps(bias, self.ops[name], data, weight)
            self.integer.given[place] = Tensor(self.biases[place])

    def _joint(self, layer: Apply, dtype: QuantizedDType, weight: np.ndarray) -> Joint:
        """What reaches a layer, and what it should give, in all samples."""
        name, scale = layer.output.name, float(dtype.only_scale)
        reach = scale * max(dtype.qmax - dtype.zero_point, dtype.zero_point - dtype.qmin)
        most = float(np.abs(weight).sum(axis=2).max(initial=0.0)) * reach
        joint = Joint(layer, scale, 2.0 ** (np.ceil(np.log2(max(most, 1e-30))) - FINE + dtype.bits))
        rows = weight.shape[:2]
        bias = layer.inputs[2].expr.value.numpy().reshape(rows[0], 1, rows[1]) if len(layer.inputs) > 2 else 0.0
        stops = self.exact.index[name], self.integer.index[name]
        keep = False
        for at, (exact, integer) in enumerate(self.places):
            here = self.exact.moved(exact, stops[0]), self.integer.moved(integer, stops[1])
            if at == 0:
                keep = (here[0].nbytes + here[1].nbytes) * len(self.places) <= MEMORY
            if keep:
                self.places[at] = here
            steps = np.rint(here[1].values[id(self.nodes[name].expr.inputs[0])].numpy() / np.float32(scale))
            wanted = results_of(layer, self._wanted(layer, *here)) - bias
            joint.update(at % 2, windows_of(layer, steps, 0.0), wanted)
        return joint

    def _wanted(self, layer: Apply, exact: Place, integer: Place) -> np.ndarray:
        """The float result, and what the residual that is added to it lacks, where both are known already."""
        y, residual = self.exact.result(exact).numpy(), self.residuals.get(layer.output.name)
        if residual is None or id(residual) not in exact.values:
            return y
        real = integer.values.get(id(self.real.get(residual.name, self.nodes[residual.name])))
        return y if real is None else y + (exact.values[id(residual)].numpy() - real.numpy())
