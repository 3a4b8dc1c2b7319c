"""observe and calibrate: run a graph over the data once and keep statistics, never the data."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from megengine.core.errors import ArgumentError
from megengine.core.sizes import is_open
from megengine.kernels import cpus
from megengine.kernels.cuda.placing import on_gpu
from megengine.quantization.checks import require_float, require_float_modules
from megengine.quantization.pipeline.annotate import annotate
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.canonicalize import canonicalize
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.device_counting import DeviceCounter
from megengine.quantization.pipeline.spec import Known, Masked, Plain, Shared
from megengine.quantization.ranges import Batch, Data, Progress, TensorStatistics, stream
from megengine.traced_module import TracedModule
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.tracing.entry import on_processor
from megengine.traced_module.untraced import remedy_for

_LOOKING = 128  # batches that are kept for it
_LOOKERS = 4  # threads: a processor digests pictures about as fast as a GPU runs them
Look = Callable[[Batch, Mapping[str, np.ndarray]], None]


def require_traced(model: Any, name: str) -> None:
    """Raises ArgumentError, in the name of a function, for what is no traced module and no graph."""
    if not isinstance(model, (TracedModule, InternalGraph)):
        raise ArgumentError(f"{name}: model is a {type(model).__name__}; expected a TracedModule; {remedy_for(model)}")


def prepared(model: TracedModule | InternalGraph) -> InternalGraph:
    """The float32 graph of a model, in its canonical form. Raises QuantizationError if it is quantized already."""
    if isinstance(model, TracedModule):
        require_float_modules(model)
    source = on_processor(model)
    require_float(source)
    return canonicalize(source)


def observe(graph: InternalGraph, *annotations: Annotation) -> dict[str, TensorStatistics]:
    """Empty statistics for every edge that takes its scale from data by one of the annotations, and of the inputs of
    layers, whose means bias correction needs.
    """
    specs = [(name, spec) for a in annotations for name, spec in a.edges.items()]
    plain = {name for name, spec in specs if isinstance(spec, Plain | Known)}
    shared = {spec.source for _, spec in specs if isinstance(spec, Shared)}
    scores = {name for _, spec in specs if isinstance(spec, Masked) for name in spec.scores}
    layers = {name for a in annotations for name in a.weights}
    axes = {
        e.inputs[0].name: input_axis(e)
        for e in graph.exprs()
        if isinstance(e, Apply) and e.record.weighted and e.outputs[0].name in layers
    }
    names = sorted(plain | shared | scores | set(axes))
    return {n: TensorStatistics(n, _channel_axis(graph, n, axes.get(n, 1)), averaged=n in axes) for n in names}


def input_axis(layer: Apply) -> int:
    """The axis of a layer's input along which one value for every weight of an output lies."""
    if not layer.record.rows:
        return 1
    return len(layer.inputs[0].spec.shape) - (2 if layer.attrs["transpose_a"] else 1)


def _channel_axis(graph: InternalGraph, name: str, axis: int) -> int | None:
    """The axis of channels; None where that is an open axis, as batches differ in its length."""
    return None if axis in graph.node(name).spec.open_axes else axis


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
    look: Look | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, TensorStatistics]:
    """Feed every batch through the graph and update the statistics in place.

    `look` sees every batch and the results by node name; of those that a GPU computes, float32 results without TF32
    that are small beside the network's values, and in any order, several at a time.

    The processor runs it, or a GPU by its name. Memory does not grow with the number of batches. Raises
    CalibrationError if there is none, or for NaN and infinity at a node, which is named.
    """
    together = samples_at_once(graph)
    if device is not None and on_gpu(device):
        _count_on_device(graph, stats, batches, look, device, progress)
        return stats
    sinks = {name: partial(one.update, samples=together) for name, one in stats.items()}
    if look is None:
        stream(graph, batches, sinks, stage="calibrate", progress=progress)
        return stats
    shown: dict[str, np.ndarray] = {}

    def show(name: str, x: np.ndarray) -> None:
        if name in stats:
            stats[name].update(x, samples=together)
        shown[name] = np.array(x)  # a plan writes the next values where these lie

    sinks |= {node.name: partial(show, node.name) for node in graph.outputs}
    stream(graph, batches, sinks, stage="calibrate", look=lambda arrays: look(arrays, shown), progress=progress)
    return stats


def _count_on_device(
    graph: InternalGraph,
    stats: dict[str, TensorStatistics],
    batches: Iterable[Any],
    look: Look | None,
    device: str,
    progress: Progress | None,
) -> None:
    """Run every batch on a GPU; `look` sees it behind, in one of a few threads."""
    data = batches if isinstance(batches, Data) else Data.of(batches, graph)
    looking: deque[Future[None]] = deque()
    with ThreadPoolExecutor(min(_LOOKERS, cpus.quota())) as threads:

        def look_behind(arrays: Batch, shown: Mapping[str, np.ndarray]) -> None:
            assert look is not None
            looking.append(threads.submit(look, arrays, shown))
            if len(looking) > _LOOKING:
                looking.popleft().result()

        seen = None if look is None else look_behind
        counter = DeviceCounter(graph, stats, samples_at_once(graph), device, rows=data.divided, look=seen)
        stream(graph, data, {}, stage="calibrate", run=counter.take, progress=progress)
        counter.finish()
        for one in looking:
            one.result()


def samples_at_once(graph: InternalGraph) -> int:
    """How many samples a run of the graph takes along axis 0 of its inputs."""
    first = {node.spec.shape[:1] for node in graph.inputs}
    return first.pop()[0] if len(first) == 1 and () not in first and not is_open([*first]) else 1
