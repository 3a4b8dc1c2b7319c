"""Networks whose layers have different integers, made of parts that were decided once for all layers.

Weights are rounded together with one precision for all layers, and once more with another; a mixed network takes its
weights from both. Scales of edges follow from statistics. Only biases are corrected anew, so a network takes moments.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from megengine.core.dtype import QuantizedDType
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.freeze import Frozen, QuantizedWeight, freeze, source_of
from megengine.quantization.pipeline.integer_graph import integer_graph
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.pipeline.quantize import QuantizedModel, requantize
from megengine.quantization.pipeline.refine import bias_corrected
from megengine.quantization.pipeline.selection import PRECISIONS, LayerRule
from megengine.quantization.pipeline.spec import Plain, Shared, Weight
from megengine.quantization.ranges import Progress
from megengine.traced_module.ir.graph import InternalGraph

Move = tuple[str, str]  # the name of a layer or edge, and the precision that it takes


@dataclass(slots=True)
class Mixer:
    """Makes mixed networks of a quantized one.

    Args:
        base: the network in which no layer has moved.
        models: the base, and it with all layers in another precision, from which weights are taken.
    """

    base: QuantizedModel
    models: list[QuantizedModel] = field(init=False)

    def __post_init__(self) -> None:
        self.models = [self.base]

    def prepare(self, precision: str, calibration: Iterable[Any], progress: Progress | None = None) -> None:
        """Round the weights of all layers in a precision."""
        config = self.base.config
        every = tuple(LayerRule(name, precision) for name in self.base.frozen.weights)
        self.models.append(
            requantize(self.base, config.changed(rules=(*config.rules, *every)), calibration, progress=progress)
        )

    def edges(self) -> list[str]:
        """The edges that have 8 bits and a scale of their own."""
        specs, dtypes = self.base.annotation.edges, self.base.frozen.edges
        return [name for name, spec in specs.items() if type(spec) is Plain and dtypes[name].itemsize == 1]

    def rules(self, moves: Iterable[Move]) -> tuple[str, ...]:
        """The rules of moves, one for each layer: with a precision for its weight and one for its result, of both."""
        bits: dict[str, tuple[int | None, int | None]] = {}
        for name, word in moves:
            weight, result = PRECISIONS[word]
            if name in bits:
                one = bits[name]
                few = min(x for x in (one[0], weight) if x is not None)
                weight, result = few, max(x for x in (one[1], result) if x is not None)
            bits[name] = weight, result
        words = {pair: word for word, pair in PRECISIONS.items()}
        return tuple(f"{name}={words[pair]}" for name, pair in bits.items())

    def network(self, moves: Iterable[Move]) -> InternalGraph:
        """The integer network with some layers moved."""
        config = self.base.config
        rules = tuple(map(LayerRule.parse, self.rules(moves)))
        annotation = annotate(self.base.float_graph, config.changed(rules=(*config.rules, *rules)))
        return integer_graph(self.base.float_graph, self._frozen(annotation), config)

    def _frozen(self, annotation: Annotation) -> Frozen:
        base = self.base
        known: dict[str, QuantizedDType] = {
            name: base.frozen.edges[name]
            for name, spec in annotation.edges.items()
            if base.annotation.edges.get(name) == spec
        }
        weights = {name: one for name, spec in annotation.weights.items() if (one := self._weight(name, spec))}
        dtypes = {name: one.dtype for name, one in weights.items()}
        frozen = freeze(base.float_graph, annotation, {**base.stats, **known}, dtypes)
        frozen = replace(frozen, weights={**frozen.weights, **weights})
        if not base.config.bias_correction:
            return frozen
        corrected = bias_corrected(base.float_graph, annotation, frozen, base.stats)
        kept = {
            place: base.frozen.biases[place]
            for name, place in annotation.biases.items()
            if place in base.frozen.biases and self._unmoved(name, frozen)
        }
        return replace(corrected, biases={**corrected.biases, **kept})

    def _weight(self, layer: str, spec: Weight) -> QuantizedWeight | None:
        """What was decided for a weight with the same spec."""
        return next(
            (one.frozen.weights[layer] for one in self.models if one.annotation.weights.get(layer) == spec), None
        )

    def _unmoved(self, layer: str, frozen: Frozen) -> bool:
        expr = self.base.float_graph.node(layer).expr
        edge, base = expr.inputs[0].name, self.base.frozen
        same = frozen.edges.get(edge) == base.edges.get(edge)
        return same and frozen.weights.get(layer) is base.weights.get(layer)

    def rounded_edge(self, edge: str) -> InternalGraph:
        """The float network with one edge alone rounded, and what shares its scale."""
        base = self.base
        sources = {n: source_of(n, spec, base.annotation) for n, spec in base.annotation.edges.items()}
        shared = isinstance(base.annotation.edges[edge], Plain | Shared)
        edges = {n: base.frozen.edges[n] for n, source in sources.items() if shared and source == edge}
        return materialize(base.float_graph, replace(base.frozen, edges=edges, weights={}, operands={}, biases={}))

    def rounded_weight(self, layer: str, model: QuantizedModel) -> InternalGraph:
        """The float network with one weight alone rounded, and its bias corrected for that."""
        base, place = self.base, self.base.annotation.biases.get(layer)
        frozen = Frozen({}, {layer: model.frozen.weights[layer]}, {}, {})
        if base.config.bias_correction and place is not None:
            alone = replace(base.annotation, biases={layer: place})
            frozen = bias_corrected(base.float_graph, alone, frozen, base.stats)
        return materialize(base.float_graph, frozen)
