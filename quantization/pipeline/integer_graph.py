"""The integer network of a float graph, with all numbers decided."""

from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.fold import fold
from megengine.quantization.pipeline.freeze import Frozen
from megengine.quantization.pipeline.integerize import integerize
from megengine.quantization.pipeline.materialize import materialize
from megengine.traced_module.ir.graph import InternalGraph


def integer_graphs(graph: InternalGraph, frozen: Frozen, config: QuantConfig) -> tuple[InternalGraph, InternalGraph]:
    """A canonical float graph with explicit quantize / dequantize exprs, and the same in integers."""
    qdq = materialize(graph, frozen)
    return qdq, integerize(fold(qdq), int_bias=config.target.bias == "int32")


def integer_graph(graph: InternalGraph, frozen: Frozen, config: QuantConfig) -> InternalGraph:
    """A canonical float graph in integers, for the target of the settings. Raises as `integerize`."""
    return integer_graphs(graph, frozen, config)[1]
