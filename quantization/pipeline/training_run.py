"""One forward pass of a network in training: values of its integer network, gradients of its float network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megengine.core.dtype import QuantizedDType, is_float, known_quantized
from megengine.core.sizes import at as sizes_at
from megengine.dispatch import apply
from megengine.ops.simulation import with_value
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.freeze import Frozen, real_weight
from megengine.quantization.pipeline.layer_regions import LayerRegion
from megengine.quantization.pipeline.materialize import made_in_float
from megengine.quantization.pipeline.spec import Shared
from megengine.quantization.pipeline.straight_through import (
    IntegerLayer,
    RoundedValue,
    RoundedWeight,
    Slope,
    Sum,
    ends_of,
    rounded_sum,
)
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.interpret import run_op
from megengine.traced_module.ir.expr import Apply, Constant, Input
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode
from megengine.traced_module.sizes import has_open_axes, sizes_of

Scales = Mapping[str, tuple[Tensor, Slope]]
_PLAIN = (Tensor(np.float32(1)), Slope())


@dataclass(frozen=True, slots=True)
class Network:
    """A network as it is in one step of training.

    Args:
        graph: the float network, canonical, with its annotation and the regions of its layers.
        frozen: the dtypes and integers now.
        integers: the integer network, and the node that stands for each edge in it.
        parameters: constants of the float network that are trained, by name: of the tape.
        scales: of edges and of weights (by layer), where they are learnt: of the tape, with their gradient.
    """

    graph: InternalGraph
    annotation: Annotation
    regions: Mapping[str, LayerRegion]
    frozen: Frozen
    integer_graph: InternalGraph
    integers: Mapping[str, TensorNode]
    parameters: Mapping[str, Tensor]
    scales: Scales
    weight_scales: Scales


@dataclass(slots=True)
class Seen:
    """What a pass shows before rounding: smallest and largest value of edges, results of layers with their scale."""

    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    layers: dict[str, tuple[np.ndarray, float]] = field(default_factory=dict)


@dataclass(slots=True)
class _Integers:
    """The values of the integer network by node, and the sums of its layers."""

    values: dict[int, Tensor] = field(default_factory=dict)
    sums: dict[int, Sum] = field(default_factory=dict)


def run(network: Network, inputs: Sequence[Tensor], seen: Seen | None = None) -> list[Tensor]:
    """The results: every value is the integer network's."""
    whole = _integer_values(network, inputs)
    return _Straight(network, whole, seen).outputs(inputs)


def run_watched(
    network: Network, inputs: Sequence[Tensor], names: Iterable[str]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """The results, and the values of nodes of the float network by name, on the tape."""
    straight = _Straight(network, _integer_values(network, inputs), None)
    outputs = straight.outputs(inputs)
    return outputs, {name: straight.values[id(network.graph.node(name))] for name in names}


def _integer_values(network: Network, inputs: Sequence[Tensor]) -> _Integers:
    graph = network.integer_graph
    sizes = sizes_of(graph, [x.shape for x in inputs]) if has_open_axes(graph) else {}
    found = _Integers({id(n): x.detach() for n, x in zip(graph.inputs, inputs, strict=True)})
    values = found.values
    for expr in graph.exprs():
        if isinstance(expr, Constant):
            values[id(expr.output)] = expr.value
        elif isinstance(expr, Apply):
            operands = [values[id(n)] for n in expr.inputs]
            if expr.op in _LAYERS and isinstance(expr.attrs["dtype"], QuantizedDType):
                results = (_layer(expr, operands, found, sizes),)
            else:
                results = run_op(expr, operands, sizes)
                if expr.op == "reshape" and (whole := found.sums.get(id(expr.inputs[0]))) is not None:
                    found.sums[id(expr.output)] = replace(whole, stored=results[0])
            for node, value in zip(expr.outputs, results, strict=True):
                values[id(node)] = value
    return found


_LAYERS = ("qconv2d", "qlinear")


def _layer(expr: Apply, operands: Sequence[Tensor], found: _Integers, sizes: Mapping[str, int]) -> Tensor:
    """The layer in two: its sums in steps of the result, float32, and their rounding."""
    attrs = sizes_at(dict(expr.attrs), sizes)
    lo, hi, ratio, dtype = (attrs[k] for k in ("lo", "hi", "ratio", "dtype"))
    t = apply(expr.op, *operands[:5], **{**attrs, "lo": 0, "hi": 0, "ratio": 0.0, "dtype": "float32"})
    residual = operands[5] if len(operands) > 5 else None
    whole = rounded_sum(t.numpy(), residual, ratio, lo, hi, dtype)
    found.sums[id(expr.output)] = whole
    return whole.stored


class _Straight:
    """The float network at the values of the integer network, which a tape can follow."""

    def __init__(self, network: Network, whole: _Integers, seen: Seen | None) -> None:
        self.network, self.whole, self.seen = network, whole, seen
        self.values: dict[int, Tensor] = {}
        self.real: dict[int, Tensor] = {}  # what is rounded, as float ops take it
        self.inner = {id(e) for name, r in network.regions.items() if self._sum(name) for e in r.ops[:-1]}

    def outputs(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """The results, on the tape."""
        graph = self.network.graph
        self.sizes = sizes_of(graph, [x.shape for x in inputs]) if has_open_axes(graph) else {}
        supply = iter(inputs)
        for expr in graph.exprs():
            if id(expr) in self.inner:
                continue
            if isinstance(expr, Input):
                results: Sequence[Tensor] = (next(supply),)
            elif isinstance(expr, Constant):
                results = (self.network.parameters.get(expr.name, expr.value),)
            else:
                assert isinstance(expr, Apply), expr
                results = self._results(expr)
            for node, value in zip(expr.outputs, results, strict=True):
                self.values[id(node)] = self._rounded(node, value)
                if node.name in self.network.annotation.edges and made_in_float(node, self.network.frozen):
                    self.real[id(node)] = value
        exact = [self.whole.values[id(n)] for n in self.network.integer_graph.outputs]
        taken = self.values | self.real if self.network.frozen.real_results else self.values
        return [with_value(taken[id(n)], q) for n, q in zip(graph.outputs, exact, strict=True)]

    def _sum(self, name: str) -> Sum | None:
        node = self.network.integers.get(name)
        return None if node is None else self.whole.sums.get(id(node))

    def _results(self, expr: Apply) -> Sequence[Tensor]:
        name = expr.outputs[0].name
        region, whole = self.network.regions.get(name), self._sum(name)
        if region is not None and whole is not None:
            return (self._integer_layer(name, region, whole),)
        operands = [self._operand(expr, at) for at in range(len(expr.inputs))]
        results = run_op(expr, operands, self.sizes)
        if self.seen is not None and name in self.network.annotation.weights:
            self.seen.layers[name] = results[0].numpy(), 1.0
        return results

    def _operand(self, expr: Apply, at: int) -> Tensor:
        """An operand as the op reads it: constants that are stored as integers are rounded."""
        name, frozen, node = expr.outputs[0].name, self.network.frozen, expr.inputs[at]
        real = self.real.get(id(node)) if name in frozen.floating else None
        value = self.values[id(node)] if real is None else real
        if at == 1 and (weight := frozen.weights.get(name)) is not None:
            scale, slope = self.network.weight_scales.get(name, _PLAIN)
            real = None if weight.values.shape == value.shape else real_weight(expr, weight)
            return RoundedWeight(Tensor._wrap(weight.values, weight.dtype), slope, real)(value, scale)
        if (constant := frozen.operands.get((name, at))) is not None:
            if constant.values.shape == value.shape:
                return apply("fake_quant", value, dtype=constant.dtype)
            rows = apply("fake_quant", apply("reshape", value, shape=constant.values.shape), dtype=constant.dtype)
            return apply("reshape", rows, shape=value.shape)
        return value

    def _integer_layer(self, name: str, region: LayerRegion, whole: Sum) -> Tensor:
        scale, slope = self.network.scales.get(name, _PLAIN)
        added = [n for n in (region.bias, region.residual) if n is not None]
        operands = [self._operand(region.layer, at) for at in range(2)]
        attrs = sizes_at(dict(region.layer.attrs), self.sizes)
        layer = IntegerLayer(region.layer, attrs, whole, slope)
        y = layer(*operands, scale, *(self.values[id(n)] for n in added))
        if self.seen is not None:
            self._note(name, region, whole)
        return y

    def _note(self, name: str, region: LayerRegion, whole: Sum) -> None:
        assert self.seen is not None
        dtype = known_quantized(whole.stored.dtype)
        lo, hi = whole.lo, whole.hi
        (low, high), ends = whole.ends, ends_of(dtype)
        low = low if lo == ends[0] and lo < 0 else max(low, lo)  # what an activation cuts off is not seen
        high = high if hi == ends[1] else min(high, hi)
        self.seen.ranges[name] = low * dtype.only_scale, high * dtype.only_scale
        self.seen.layers[region.layer.outputs[0].name] = whole.alone, dtype.only_scale

    def _rounded(self, node: TensorNode, value: Tensor) -> Tensor:
        """The value of an edge, which the integer network gives; others as they are."""
        spec, expr = self.network.annotation.edges.get(node.name), node.expr
        if spec is None and (last := self.network.integers.get(node.name)) is not None and is_float(last.dtype):
            return with_value(value, self.whole.values[id(last)])
        if spec is None or (node.name in self.network.regions and self._sum(node.name) is not None):
            return value
        if isinstance(spec, Shared) and isinstance(expr, Apply) and expr.inputs[0].name == spec.source:
            return value  # its op only moves what is rounded already
        if self.seen is not None and value.size:
            array = value.numpy()
            self.seen.ranges[node.name] = (float(array.min()), float(array.max()))
        source = self.network.integers.get(node.name)
        stored = None if source is None else self.whole.values.get(id(source))
        dtype = self.network.frozen.edges[node.name]
        if stored is None or stored.dtype != dtype or stored.shape != value.shape:
            stored = apply("quantize", value.detach(), dtype=dtype)
        scale, slope = self.network.scales.get(node.name, _PLAIN)
        return RoundedValue(stored, slope)(value, scale)


def float_run(graph: InternalGraph, inputs: Sequence[Tensor], parameters: Mapping[str, Tensor], seen: Any) -> list:
    """The float network on the tape; `seen(name, array)` is called with every value."""

    def look(node: TensorNode, value: Tensor) -> Tensor | None:
        value = parameters.get(node.name, value)
        if seen is not None:
            seen(node.name, value.numpy())
        return value

    return interpret(graph, inputs, on_value=look)
