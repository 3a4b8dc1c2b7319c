"""observe and calibrate: run a graph over the data once and keep statistics, never the data."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from megengine.core.sizes import is_open
from megengine.quantization.pipeline.annotate import Annotation, annotate
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.spec import Plain, Shared
from megengine.quantization.ranges import Progress, TensorStatistics, stream
from megengine.traced_module.ir.graph import InternalGraph


def observe(graph: InternalGraph, *annotations: Annotation) -> dict[str, TensorStatistics]:
    """Empty statistics for every edge that takes its scale from data by one of the annotations."""
    specs = [(name, spec) for a in annotations for name, spec in a.edges.items()]
    plain = {name for name, spec in specs if isinstance(spec, Plain)}
    shared = {spec.source for _, spec in specs if isinstance(spec, Shared)}
    return {name: TensorStatistics(name, _channel_axis(graph, name)) for name in sorted(plain | shared)}


def _channel_axis(graph: InternalGraph, name: str) -> int | None:
    """The axis of channels; None where that is an open axis, as batches differ in its length."""
    shape = graph.node(name).spec.shape
    return None if is_open(shape[1:2]) else 1


def observe_all(graph: InternalGraph, config: QuantConfig) -> dict[str, TensorStatistics]:
    """Empty statistics for every edge that any settings could quantize, so that data is read once."""
    targets = [replace(config.target, residual=kind, quantize_outputs=True) for kind in ("fused", "quantized")]
    plain = config.changed(exclude=(), include=(), rules=(), precision="w8a8", group=0)
    every = [config, *(plain.changed(profile=target) for target in targets)]
    return observe(graph, *(annotate(graph, one) for one in every))


def calibrate(
    graph: InternalGraph,
    stats: dict[str, TensorStatistics],
    batches: Iterable[Any],
    *,
    progress: Progress | None = None,
) -> dict[str, TensorStatistics]:
    """Feed every batch through the graph and update the statistics in place.

    Memory does not grow with the number of batches. Raises CalibrationError if there is none, or for NaN and infinity
    at a node, which is named.
    """
    sinks = {name: one.update for name, one in stats.items()}
    stream(graph, batches, sinks, stage="calibrate", progress=progress)
    return stats
