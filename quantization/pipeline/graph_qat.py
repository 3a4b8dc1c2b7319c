"""Quantization-aware training of a captured network: no layer needs to be rewritten."""

from typing import Any

import numpy as np

from megengine.core.errors import CalibrationError, OptionError
from megengine.dispatch import apply
from megengine.module import Module
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.calibrate import observe
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.fold import fold
from megengine.quantization.pipeline.freeze import edge_dtype, freeze, quantize_weight
from megengine.quantization.pipeline.integerize import integerize
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.ranges import RangeMethod
from megengine.tensor import Parameter, Tensor
from megengine.traced_module import TracedModule, interpret, lower, trace_module
from megengine.traced_module.editing.rewiring import replace_all_uses
from megengine.traced_module.ir.expr import Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.primitives import remove_dead


class QATGraph(Module):
    """A float network with fake quantization on every annotated edge and weight.

    The network is captured with batch norms folded (their statistics are frozen), and its weights and biases
    are the parameters to train; gradients pass straight through rounding, inside the range. Values are
    rounded to the scales that conversion will use, so what is trained is what runs. `observing` lets ranges
    move (in training mode), `fake_quantizing` rounds values.
    """

    def __init__(self, graph: InternalGraph, config: QuantConfig) -> None:
        super().__init__(graph.name)
        self._graph, self.config = canonicalize(graph), config
        self._annotation = annotate(self._graph, config)
        self._stats = observe(self._graph, self._annotation)
        self.weights = {
            e.name: Parameter(e.value.numpy().copy())
            for e in self._graph.exprs()
            if isinstance(e, Constant) and e.value.dtype == np.float32
        }
        self._layer_of = {
            e.inputs[1].name: e.name for e in self._graph.exprs() if e.outputs and e.name in self._annotation.weights
        }
        self.observing = self.fake_quantizing = True

    def forward(self, *inputs: Any) -> Any:
        """Run the network; observes ranges in training mode only, rounds where scales are known."""
        outputs = interpret(self._graph, inputs, on_value=self._on_value)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _on_value(self, node: Any, value: Tensor) -> Tensor | None:
        if node.name in self.weights:
            value = self.weights[node.name]
            if not self.fake_quantizing or node.name not in self._layer_of:
                return value
            spec = self._annotation.weights[self._layer_of[node.name]]
            return apply("fake_quant", value, dtype=quantize_weight(node.name, value.numpy(), spec).dtype)
        if node.name in self._stats and self.observing and self.training:
            self._stats[node.name].update(value.numpy())
        if self.fake_quantizing and node.name in self._annotation.edges:
            try:
                dtype = edge_dtype(node.name, self._annotation, self._stats)
            except CalibrationError:
                if not self.training:
                    raise
                return None  # a shared scale whose source comes later in the first pass
            return apply("fake_quant", value, dtype=dtype)
        return None

    def convert(self) -> TracedModule:
        """The integer network. Raises CalibrationError if an observer saw nothing; its node is named."""
        graph = self._graph.clone()
        for expr in graph.exprs():
            if isinstance(expr, Constant) and expr.name in self.weights:
                name, value = expr.name, self.weights[expr.name].numpy().copy()
                replace_all_uses(graph, expr.outputs[0], graph.constant(value, name=f"{name}_trained", before=expr))
        remove_dead(graph)
        frozen = freeze(graph, self._annotation, self._stats)
        int_bias = self.config.target.bias == "int32"
        return TracedModule.from_graph(
            integerize(fold(materialize(graph, self._annotation, frozen)), int_bias=int_bias)
        )


TRAINING = QuantConfig(activations=RangeMethod("ema"), bias_correction=False)
"""Moving averages of the ranges; weights train, so their error is not corrected."""


def prepare_qat(module: Module | InternalGraph, *inputs: Any, config: QuantConfig = TRAINING) -> QATGraph:
    """A copy of a float network for quantization-aware training; `.convert()` makes it an integer network.

    Args:
        module: float module (captured in evaluation mode), traced module or op-level graph.
        inputs: sample inputs, needed to capture a module that is not traced yet.
        config: ranges, weights, profile and exclusions.

    Raises:
        OptionError: a module that is not traced came without sample inputs.
    """
    if not isinstance(module, (InternalGraph, TracedModule)):
        if not inputs:
            raise OptionError(
                f"prepare_qat: {type(module).__name__} is captured as a graph, which needs its input shapes; "
                "pass sample inputs: prepare_qat(module, x)"
            )
        module.eval()
        module = trace_module(module, *inputs)
    return QATGraph(lower(module).graph, config)
