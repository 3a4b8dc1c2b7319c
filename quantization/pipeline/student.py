"""The parameters of an integer network that is trained after calibration, from the integers that it has."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.dtype import QuantizedDType, quantized
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.fold import fold
from megengine.quantization.pipeline.freeze import Frozen, QuantizedWeight, in_steps, real_weight, source_of
from megengine.quantization.pipeline.integerize import with_integers
from megengine.quantization.pipeline.layer_regions import LayerRegion, layer_regions
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.pipeline.spec import Plain, Shared
from megengine.quantization.pipeline.straight_through import Slope
from megengine.quantization.pipeline.training_run import Network, Scales
from megengine.tensor import Parameter, Tensor
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

Place = tuple[str, int]
_LEARNT = Slope.of("tqt")
_REACH = 1.0  # scales stay within half and twice of what they were: logarithm to base 2
_TYPICAL = 1 / 6  # of the range of an edge: its root mean square
_ROOM = 0.49  # of a step, by which a weight may lie beyond the last integer


@dataclass(slots=True)
class Student:
    """What is trained of a network: all zeros at the start, where the network is `start` to the bit.

    Args:
        weights: by layer, in steps of their scale: the integers are these, rounded.
        weight_scales, edges: changes of scales, logarithms to base 2, by layer and by edge.
        biases: changes by place, in units of the noise that steps of the layer's input and weight make.

    Weights in groups, those that two layers read and edges that share the scale of a constant stay as they are.
    """

    graph: InternalGraph
    annotation: Annotation
    start: Frozen
    int_bias: bool
    weights: dict[str, Parameter] = field(default_factory=dict)
    weight_scales: dict[str, Parameter] = field(default_factory=dict)
    edges: dict[str, Parameter] = field(default_factory=dict)
    biases: dict[Place, Parameter] = field(default_factory=dict)
    units: dict[Place, np.ndarray] = field(init=False, default_factory=dict)
    layers: dict[str, Apply] = field(init=False)
    regions: dict[str, LayerRegion] = field(init=False)
    sources: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.layers = {e.outputs[0].name: e for e in self.graph.exprs() if isinstance(e, Apply)}
        self.regions = layer_regions(self.graph, self.annotation)
        self.sources = {name: source_of(name, spec, self.annotation) for name, spec in self.annotation.edges.items()}
        for name, weight in self.start.weights.items():
            self._add_layer(name, weight)
        operands = self.annotation.operands.items()
        kept = {source_of(name, spec, self.annotation) for (name, _), spec in operands if isinstance(spec, Shared)}
        for name, spec in self.annotation.edges.items():
            if isinstance(spec, Plain) and name not in kept:
                self.edges[name] = Parameter(np.zeros((), np.float32))

    def _add_layer(self, name: str, weight: QuantizedWeight) -> None:
        layer = self.layers[name]
        if weight.values.shape != layer.inputs[1].shape or len(layer.inputs[1].users) > 1:
            return
        self.weights[name] = Parameter(weight.values.astype(np.float32))
        self.weight_scales[name] = Parameter(np.zeros(np.shape(weight.dtype.scale), np.float32))
        data, place = self.start.edges.get(layer.inputs[0].name), self.annotation.biases.get(name)
        if data is None or place is None or place not in self.start.biases or not self._is_read_once(place):
            return
        rows = _by_output(layer, real_weight(layer, weight)).astype(np.float64)
        steps = np.asarray(weight.dtype.scale, np.float64)
        steps = steps if steps.size in (1, len(rows)) else steps.max()
        typical = (data.qmax - data.qmin) * _TYPICAL * steps
        unit = data.only_scale * np.sqrt((rows**2).sum(axis=1) + rows.shape[1] * typical**2)
        if self.start.biases[place].shape == unit.shape:
            self.units[place] = unit.astype(np.float32)
            self.biases[place] = Parameter(np.zeros(unit.shape, np.float32))

    def _is_read_once(self, place: Place) -> bool:
        owner, at = self.layers[place[0]], place[1]
        return at < len(owner.inputs) and len(owner.inputs[at].users) == 1

    def groups(self, rates: dict[str, float]) -> list[dict[str, Any]]:
        """Groups of parameters for an optimizer, with the rates of "weights", "biases" and "scales".

        The scale of a weight moves its largest integer by about as many steps as the weight itself may move.
        """
        groups: list[dict[str, Any]] = [
            {"params": [*self.weights.values()], "lr": rates["weights"]},
            {"params": [*self.biases.values()], "lr": rates["biases"]},
            {"params": [*self.edges.values()], "lr": rates["scales"]},
        ]
        for name, change in self.weight_scales.items():
            rate = 0.7 * rates["weights"] / self.start.weights[name].dtype.qmax
            groups.append({"params": [change], "lr": rate})
        return [group for group in groups if group["params"]]

    def _parameters(self) -> list[Parameter]:
        kinds = (self.weights, self.weight_scales, self.edges, self.biases)
        return [parameter for kind in kinds for parameter in kind.values()]

    def values(self) -> list[np.ndarray]:
        """The parameters now, for `restore`."""
        return [np.array(parameter.numpy()) for parameter in self._parameters()]

    def restore(self, values: list[np.ndarray]) -> None:
        """Take values of `values`. Raises ValueError if their number differs."""
        for parameter, value in zip(self._parameters(), values, strict=True):
            parameter._reset(Tensor(value))

    # ------------------------------------------------------------ the network now

    def frozen(self) -> Frozen:
        """Dtypes and integers as they are now."""
        start, edges, weights, biases = self.start, {}, dict(self.start.weights), dict(self.start.biases)
        for name, before in start.edges.items():
            change = self.edges.get(self.sources.get(name, name))
            edges[name] = before if change is None else _rescaled(before, change)
        for name, steps in self.weights.items():
            before = start.weights[name]
            values = np.clip(np.rint(steps.numpy()), before.dtype.qmin, before.dtype.qmax)
            dtype = _rescaled(before.dtype, self.weight_scales[name])
            weights[name] = QuantizedWeight(values.astype(before.values.dtype), dtype)
        for name, place in self.annotation.biases.items():
            if place in self.biases:
                layer = self.layers[name]
                bias = start.biases[place] + self.biases[place].numpy() * self.units[place]
                biases[place] = in_steps(bias, layer, edges[layer.inputs[0].name], weights[name])
        return replace(start, edges=edges, weights=weights, biases=biases)

    def network(self) -> Network:
        """The network as it is now, before a tape records."""
        frozen = self.frozen()
        integer_graph, integers = with_integers(fold(materialize(self.graph, frozen)), int_bias=self.int_bias)
        return Network(self.graph, self.annotation, self.regions, frozen, integer_graph, integers, {}, {}, {})

    def recorded(self, network: Network) -> Network:
        """The same network with parameters and scales that the active tape follows."""
        of_edges = {name: self._scale(self.start.edges[name], change) for name, change in self.edges.items()}
        scales: Scales = {name: (of_edges[s], _LEARNT) for name, s in self.sources.items() if s in of_edges}
        weight_scales, now = {}, {}
        for name, steps in self.weights.items():
            node, dtype = self.layers[name].inputs[1], self.start.weights[name].dtype
            scale = self._scale(dtype, self.weight_scales[name])
            weight_scales[name] = scale, _LEARNT
            if dtype.axis is not None:
                scale = scale.reshape([-1 if i == dtype.axis % node.spec.ndim else 1 for i in range(node.spec.ndim)])
            now[node.name] = steps * scale
        for (owner, at), change in self.biases.items():
            bias, unit = self.start.biases[owner, at], self.units[owner, at]
            now[self.layers[owner].inputs[at].name] = change * Tensor(unit) + Tensor(bias)
        return replace(network, parameters=now, scales=scales, weight_scales=weight_scales)

    @staticmethod
    def _scale(dtype: QuantizedDType, change: Parameter) -> Tensor:
        return F.exp(change * float(np.log(2.0))) * Tensor(np.asarray(dtype.scale, np.float32))

    def bound(self) -> None:
        """Keep weights where integers are, and scales near those of the start."""
        for name, steps in self.weights.items():
            dtype = self.start.weights[name].dtype
            steps._reset(Tensor(np.clip(steps.numpy(), dtype.qmin - _ROOM, dtype.qmax + _ROOM)))
        for change in (*self.weight_scales.values(), *self.edges.values()):
            change._reset(Tensor(np.clip(change.numpy(), -_REACH, _REACH)))


def _rescaled(dtype: QuantizedDType, change: Parameter) -> QuantizedDType:
    scale = np.asarray(dtype.scale, np.float32) * np.exp2(change.numpy())
    return quantized(dtype.name, scale, dtype.zero_point, dtype.axis)


def _by_output(layer: Apply, real: np.ndarray) -> np.ndarray:
    """A weight as [output channels, weights that each sums]."""
    if layer.record.rows:
        return real if layer.attrs.get("transpose_b") else real.T
    if layer.record.transposed:
        groups = layer.attrs["groups"]
        real = real.reshape(groups, real.shape[0] // groups, real.shape[1], -1).swapaxes(1, 2)
        return real.reshape(-1, real.shape[2] * real.shape[3])
    return real.reshape(real.shape[0], -1)
