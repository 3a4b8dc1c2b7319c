"""Quantization-aware training of a captured network: no layer needs to be rewritten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from megengine.core.dtype import is_float
from megengine.core.errors import CalibrationError, OptionError, QuantizationError, listed
from megengine.core.sizes import is_open
from megengine.core.text import counted
from megengine.dispatch.refusal import kinds_named
from megengine.module import Module
from megengine.quantization.checks import require_float, require_float_modules
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.calibrate import calibrate, observe
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.fold import fold
from megengine.quantization.pipeline.freeze import freeze, quantize_weight, source_of
from megengine.quantization.pipeline.groups import group_of
from megengine.quantization.pipeline.integerize import with_integers
from megengine.quantization.pipeline.layer_regions import layer_regions
from megengine.quantization.pipeline.layers import require_layers
from megengine.quantization.pipeline.masks import is_mask
from megengine.quantization.pipeline.match import is_bias
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.pipeline.spec import Plain
from megengine.quantization.pipeline.straight_through import Slope
from megengine.quantization.pipeline.trained_norms import norms_of, with_norms
from megengine.quantization.pipeline.trained_scales import EdgeScale, TrainedScale, require_method
from megengine.quantization.pipeline.training_run import Network, Seen, float_run, run
from megengine.quantization.ranges import Progress, RangeMethod, as_batches, as_tensors
from megengine.tensor import Parameter, Tensor
from megengine.traced_module import TracedModule, trace_module
from megengine.traced_module.interpret import check_inputs
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import assign
from megengine.traced_module.ir.queries import applied
from megengine.traced_module.opening import lowered
from megengine.traced_module.passes.retyping import widen

TRAINING = QuantConfig(activations=RangeMethod("ema"), bias_correction=False)
"""Moving averages of the ranges; weights train, so their error is not corrected."""


class QATGraph(Module):
    """A network in training whose values are those of its integer network, in every call.

    Weights, biases, batch norms (folded with their running statistics) and, by the method, scales are its parameters.
    Gradients pass straight through rounding, inside the range. `convert()` gives the integer network, at any time.

    `observing` lets ranges move, `norms_moving` the statistics of batch norms, both in training mode only;
    `fake_quantizing` False computes in float.
    """

    def __init__(self, graph: InternalGraph, config: QuantConfig = TRAINING, method: str = "ste") -> None:
        super().__init__(graph.name)
        require_method(method)
        self.config, self.method = config, method
        source = with_norms(graph)
        self._source, self._graph = source, canonicalize(source)
        self._annotation = annotate(self._graph, config)
        require_layers(self._graph, self._annotation)
        _require_whole_scales(self._graph, self._annotation)
        self._regions = layer_regions(self._graph, self._annotation)
        self._constants = {e.name: e for e in self._graph.exprs() if isinstance(e, Constant)}
        self._layers = {e.outputs[0].name: e for e in self._graph.exprs() if isinstance(e, Apply)}
        self.norms = {name: norm for name, norm in norms_of(source).items() if self._keeps(name, norm)}
        folded = {n.name for name in self.norms for n in self._layers[name].inputs[1:]}
        self.weights = {
            name: Parameter(np.array(self._constants[name].value.numpy()))
            for name in _trainable(self._graph, self._annotation)
            if name not in folded
        }
        self.edges = {
            name: EdgeScale(method, name, spec)
            for name, spec in self._annotation.edges.items()
            if isinstance(spec, Plain)
        }
        self.weight_scales = {} if method in ("ste", "pact") else self._learnt_weight_scales()
        self.observing = self.norms_moving = self.fake_quantizing = True

    def _keeps(self, name: str, norm: Any) -> bool:
        """Whether a batch norm is all that became part of a layer, whose constants nothing else reads."""
        layer = self._layers.get(name)
        if layer is None or len(layer.inputs) != 3 or any(len(n.users) != 1 for n in layer.inputs[1:]):
            return False
        return all(
            isinstance(node.expr, Constant)
            and node.shape == value.shape
            and np.allclose(node.expr.value.numpy(), value.numpy(), rtol=1e-4, atol=1e-6)
            for node, value in zip(layer.inputs[1:], norm.folded(), strict=True)
        )

    def _learnt_weight_scales(self) -> dict[str, TrainedScale]:
        now = self._parameters_now()
        return {
            name: TrainedScale(self.method, name, quantize_weight(name, self._weight_of(name, now), spec).dtype)
            for name, spec in self._annotation.weights.items()
        }

    def _weight_of(self, layer: str, now: dict[str, Tensor]) -> np.ndarray:
        name = self._layers[layer].inputs[1].name
        return (now[name] if name in now else self._constants[name].value).numpy()

    def _parameters_now(self) -> dict[str, Tensor]:
        """The constants of the canonical network that are trained, as they are now."""
        now: dict[str, Tensor] = dict(self.weights)
        for name, norm in self.norms.items():
            now.update(zip((n.name for n in self._layers[name].inputs[1:]), norm.folded(), strict=True))
        return now

    @property
    def batch_size(self) -> int | None:
        """Samples that a call takes; None where any number will do."""
        lengths = [n.spec.shape[0] for n in self._graph.inputs if n.spec.ndim]
        return None if not lengths or is_open(tuple(lengths)) else lengths[0]

    @property
    def scale_parameters(self) -> list[Parameter]:
        """The parameters that are scales; optimizers may want another rate for them."""
        return [p for one in (*self.edges.values(), *self.weight_scales.values()) for p in one.parameters()]

    def calibrate(self, batches: Iterable[Any], *, progress: Progress | None = None) -> QATGraph:
        """Start the ranges of all edges from what the float network shows on some inputs.

        Raises:
            CalibrationError: there is no data, or it does not fit the network.
        """
        now = self._parameters_now()
        self._update_template(now)
        stats = calibrate(self._graph, observe(self._graph, self._annotation), batches, progress=progress)
        for name, edge in self.edges.items():
            edge.start(stats[name])
        return self

    def forward(self, *inputs: Any) -> Any:
        """The results of the integer network as it is now; a tape gets their gradients.

        In training mode ranges and statistics move afterwards; the first batch starts ranges that are not known yet.
        """
        tensors = check_inputs(self._graph, inputs)
        unknown = not all(edge.known for edge in self.edges.values())
        if unknown and self.training and self.observing:
            self.calibrate([tuple(x.numpy() for x in tensors)])
        if self.fake_quantizing:
            outputs = self._exact(tensors, moved=self.training and (not unknown or not self.observing))
        else:
            outputs = self._float(tensors, unknown=unknown)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _float(self, tensors: list[Tensor], *, unknown: bool) -> list[Tensor]:
        def see(name: str, array: np.ndarray) -> None:
            if name in self.edges and array.size:
                self.edges[name].see(float(array.min()), float(array.max()))

        moves = self.training and self.observing and not unknown
        return float_run(self._graph, tensors, self._parameters_now(), see if moves else None)

    def _exact(self, tensors: list[Tensor], *, moved: bool) -> list[Tensor]:
        seen = Seen() if self.training and (self.observing or self.norms_moving) else None
        network = self._network()
        outputs = run(network, tensors, seen)
        if seen is not None:
            self._follow(seen, ranges=moved and self.observing)
        return outputs

    def _follow(self, seen: Seen, *, ranges: bool) -> None:
        """Ranges and statistics after a batch."""
        if ranges:
            for name, ends in seen.ranges.items():
                if name in self.edges:
                    self.edges[name].see(*ends)
        if self.norms_moving:
            for name, (y, scale) in seen.layers.items():
                if name in self.norms:
                    self.norms[name].move(*self.norms[name].statistics_of(y, scale))

    def reestimate_norms(self, batches: Iterable[Any]) -> QATGraph:
        """Set the statistics of batch norms to their means over some inputs, with the weights as they are.

        Raises:
            CalibrationError: there is no data, or it does not fit the network.
        """
        found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self.norms}
        network = self._network()
        for arrays in as_batches(batches, self._graph):
            seen = Seen()
            run(network, as_tensors(arrays, self._graph), seen)
            for name, norm in self.norms.items():
                if name in seen.layers:
                    found[name].append(norm.statistics_of(*seen.layers[name]))
        for name, statistics in found.items():
            if not statistics:
                raise CalibrationError("reestimate_norms: the data has no batch; expected at least one input")
            mean, variance = (np.mean(parts, axis=0) for parts in zip(*statistics, strict=True))
            self.norms[name].move(mean, variance, 1.0)
        return self

    # ------------------------------------------------------------ the network of this step

    def _network(self) -> Network:
        now = self._parameters_now()
        self._update_template(now)
        values = {name: edge.value() for name, edge in self.edges.items()}
        sources = {name: source_of(name, spec, self._annotation) for name, spec in self._annotation.edges.items()}
        scales = {
            name: (values[source], Slope.of(self.edges[source].method))
            for name, source in sources.items()
            if source in self.edges
        }
        of_weights = {name: one.value() for name, one in self.weight_scales.items()}
        edges = {name: self.edges[name].dtype(value) for name, value in values.items()}
        weights = {name: self.weight_scales[name].dtype(value) for name, value in of_weights.items()}
        frozen = freeze(self._graph, self._annotation, edges, weights)
        qdq = fold(materialize(self._graph, frozen))
        integer_graph, integers = with_integers(qdq, int_bias=self.config.target.bias == "int32")
        weight_scales = {name: (value, Slope.of(self.method)) for name, value in of_weights.items()}
        return Network(
            self._graph,
            self._annotation,
            self._regions,
            frozen,
            integer_graph,
            integers,
            now,
            scales,
            weight_scales,
        )

    def _update_template(self, now: dict[str, Tensor]) -> None:
        """Put the parameters into the canonical graph."""
        for name, value in now.items():
            expr = self._constants[name]
            assign(self._graph, expr, "_value", value.detach())

    def convert(self) -> TracedModule:
        """The integer network. Raises CalibrationError if an edge saw nothing; its node is named."""
        return TracedModule.from_graph(self._network().integer_graph)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What `pickle` and `copy.deepcopy` take: the network, the settings and the state."""
        switches = {name: getattr(self, name) for name in _SWITCHES}
        source = TracedModule.from_graph(self._source)
        return _rebuilt, (source, self.config, self.method, self.state_dict(), switches)


_SWITCHES = ("training", "observing", "norms_moving", "fake_quantizing")


def _rebuilt(source: TracedModule, config: QuantConfig, method: str, state: Any, switches: dict[str, bool]) -> QATGraph:
    network = QATGraph(source.graph, config, method)
    network.load_state_dict(state)
    for name, value in switches.items():
        setattr(network, name, value)
    return network


# ---------------------------------------------------------------- which constants are trained


def _trainable(graph: InternalGraph, annotation: Annotation) -> Iterator[str]:
    """Names of the constants that are weights, biases, tables, factors of norms, or operands of integer ops."""
    for expr in graph.exprs():
        if isinstance(expr, Apply):
            name = expr.outputs[0].name
            for at, node in enumerate(expr.inputs):
                if (
                    isinstance(node.expr, Constant)
                    and is_float(node.dtype)
                    and (_is_parameter(expr, at) or ((name, at) in annotation.operands and not is_mask(node)))
                ):
                    yield node.name


def _is_parameter(expr: Apply, at: int) -> bool:
    rule = expr.record.rule
    if rule.weighted or rule.scans or rule.kind == "gather":
        return at > 0 or rule.kind == "gather"
    if is_bias(expr):
        return True
    return expr.inputs[at].spec.size > 1 and _in_norm(expr)


def _in_norm(expr: Apply) -> bool:
    if len(expr.outputs) != 1:
        return False
    ends = (expr.output, *(u.outputs[0] for u in expr.output.users))
    groups = [one for one in map(group_of, ends) if one is not None and one.rule.kind == "norm"]
    return any(expr is one.root or expr in one.inside for one in groups)


# ---------------------------------------------------------------- from a network


@kinds_named
def prepare_qat(
    module: Module | InternalGraph,
    *inputs: Any,
    config: QuantConfig = TRAINING,
    method: str = "ste",
    calibration: Iterable[Any] | None = None,
    progress: Progress | None = None,
) -> QATGraph:
    """A copy of a float network for quantization-aware training; `.convert()` makes it an integer network.

    The network is captured in evaluation mode and left as it is. It takes batches of any size, unless it is a graph of
    ops for one size, or its own code counts on the number of samples (`batch_size`).

    Args:
        module: float module, traced module or op-level graph.
        inputs: sample inputs, needed to capture a module that is not traced yet.
        config: ranges, weights, profile and exclusions.
        method: how scales are found, one of "ste", "tqt", "lsq" and "pact".
        calibration: inputs from which the ranges start; else they start from the first batch in training mode.
        progress: of the calibration.

    Raises:
        OptionError: a module that is not traced came without sample inputs, or the method is not known.
        QuantizationError: the network is quantized, has no layer to quantize, or was traced in training mode.
    """
    require_method(method)
    if not isinstance(module, (InternalGraph, TracedModule)):
        if not inputs:
            raise OptionError(
                f"prepare_qat: {type(module).__name__} is captured as a graph, which needs its input shapes; "
                "pass sample inputs: prepare_qat(module, x)"
            )
        with _in_evaluation(module):
            graph = lowered(trace_module(module, *inputs))
    else:
        if isinstance(module, TracedModule):
            require_float_modules(module)
        graph = lowered(module)
    _require_evaluation(graph)
    require_float(graph)
    widen(graph)
    network = QATGraph(graph, config, method)
    return network if calibration is None else network.calibrate(calibration, progress=progress)


@contextmanager
def _in_evaluation(module: Module) -> Iterator[None]:
    """In the body a network is in evaluation mode; each module gets its own mode back."""
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for one, training in modes:
            one.training = training


def _require_whole_scales(graph: InternalGraph, annotation: Annotation) -> None:
    """Raises OptionError for weights in groups: their sums are float, so training has no integers to follow."""
    # recurrent layers have a scale for each row of a weight, which sums one product
    rows = {e.outputs[0].name: e.inputs[1].shape[-1] for e in applied(graph) if e.record.rule.scans}
    weights = ((name, spec.group) for name, spec in annotation.weights.items() if spec.group != rows.get(name, 0))
    grouped = [f"{name!r} ({counted(group, 'weight')})" for name, group in weights if group]
    if grouped:
        raise OptionError(
            f"prepare_qat: weights of {listed(grouped)} share scales in groups, which compute in float; leave group "
            "out, or quantize these layers without training: quantize_model"
        )


def _require_evaluation(graph: InternalGraph) -> None:
    """Raises QuantizationError for a network whose batch norms are those of training."""
    norms = [e.outputs[0].name for e in graph.exprs() if isinstance(e, Apply) and e.op == "batch_norm_training"]
    if norms:
        raise QuantizationError(
            f"prepare_qat: {norms[0]!r} normalizes by the statistics of the batch: the network was traced in training "
            "mode; call eval() before trace_module, then train what prepare_qat gives"
        )
