"""Sixty faults are planted in quantized networks, one at a time; does analysis name the layer and the cause first?

Three published classifiers on photographs, and a ResNet-18 with random weights. Wrong preparation of the calibration
data, ranges too wide, values cut, wrong biases, batch norms with other statistics (in the float network, or folded
wrongly), weights in another order, a wrong scale of one layer. Seeds are fixed.
Run: python bench/planted_faults.py [--network NAME] [--kind KIND]
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from megengine import models
from megengine.cli.networks import NETWORKS, Calibration
from megengine.cli.photos import photo_set
from megengine.quantization import QuantConfig, QuantizedModel, quantize_model
from megengine.quantization.checks import Finding, Noise, Switchboard, diagnose
from megengine.quantization.pipeline.freeze import QuantizedWeight, quantize_weight
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.pipeline.spec import Plain
from megengine.quantization.ranges import as_tensors
from megengine.tensor import Tensor
from megengine.traced_module import InternalGraph, TracedModule, interpret, lower, trace_module
from megengine.traced_module.editing.rewiring import set_input
from megengine.traced_module.ir.expr import Apply

CONFIG = QuantConfig(bias_correction=False)
SAMPLES = 3  # on which the faults are looked for
Batches = list[tuple[np.ndarray, ...]]


@dataclass(frozen=True, slots=True)
class Planted:
    """A network with a fault: graphs and data for `diagnose`, and what it should name first."""

    exact: InternalGraph
    rounded: InternalGraph
    source: InternalGraph
    layer: str
    cause: str


@dataclass(frozen=True, slots=True)
class Subject:
    """A healthy network: its graph of ops, its quantized form, data to calibrate on and data to analyze."""

    name: str
    source: InternalGraph
    model: QuantizedModel
    calibration: Batches
    data: Batches

    @classmethod
    def of(cls, name: str, traced: TracedModule, calibration: Batches, data: Batches) -> "Subject":
        source = lower(traced).graph
        return cls(name, source, quantize_model(traced, calibration, CONFIG), calibration, data)

    def planted(self, layer: str, cause: str, **frozen: dict) -> Planted:
        """With other edges, weights or biases."""
        model = self.model
        parts = {key: {**getattr(model.frozen, key), **value} for key, value in frozen.items()}
        rounded = materialize(model.float_graph, replace(model.frozen, **parts))
        return Planted(model.float_graph, rounded, self.source, layer, cause)


def weight_of(graph: InternalGraph, layer: str) -> np.ndarray:
    return graph.node(layer).expr.inputs[1].expr.value.numpy()


def with_constant(graph: InternalGraph, layer: str, at: int, value: np.ndarray) -> InternalGraph:
    """A copy of the graph in which a layer reads another constant."""
    made = graph.clone()
    expr = made.node(layer).expr
    set_input(made, expr, at, made.constant(value.astype(np.float32), name=f"{layer}_planted", before=expr))
    return made


def some_layer(one: Subject, rng: np.random.Generator, fits: Callable[[Apply], bool] = lambda e: True) -> str:
    names = [n for n in one.model.frozen.weights if fits(one.model.float_graph.node(n).expr)]
    return str(rng.choice(names))


def some_edge(one: Subject, rng: np.random.Generator) -> str:
    inputs = {node.name for node in one.model.float_graph.inputs}
    names = [n for n, spec in one.model.annotation.edges.items() if isinstance(spec, Plain) and n not in inputs]
    return str(rng.choice(names))


def preprocessing(one: Subject, rng: np.random.Generator) -> Planted:
    """Calibrated on data that is prepared in another way."""
    ways = [lambda x: x * 58 + 120, lambda x: x / 12 + 0.5, lambda x: x + 6, lambda x: x * 16]
    way = ways[int(rng.integers(len(ways)))]
    model = quantize_model(one.source, [(way(x).astype(np.float32),) for (x,) in one.calibration], CONFIG)
    return Planted(model.float_graph, model.qdq_graph, one.source, model.float_graph.inputs[0].name, "preprocessing")


def scaled_edge(one: Subject, rng: np.random.Generator, times: float, cause: str) -> Planted:
    edge = some_edge(one, rng)
    dtype = one.model.frozen.edges[edge]
    edges = {edge: replace(dtype, scale=float(np.float32(dtype.only_scale * times)))}
    board = Switchboard(one.model.float_graph, one.model.qdq_graph)
    return one.planted(board.owner(edge), cause, edges=edges)


def wide_range(one: Subject, rng: np.random.Generator) -> Planted:
    """One edge's range is much too wide, as by an outlier."""
    return scaled_edge(one, rng, float(rng.choice([12.0, 20.0, 40.0])), "range")


def clipped_edge(one: Subject, rng: np.random.Generator) -> Planted:
    """One edge's range is too narrow."""
    return scaled_edge(one, rng, 1 / float(rng.choice([5.0, 8.0, 16.0])), "clipping")


def _rescaled(one: Subject, layer: str, times: float, *, again: bool) -> dict[str, QuantizedWeight]:
    """Another scale for the weights of a layer; `again` rounds them to it."""
    old = one.model.frozen.weights[layer]
    scale = np.asarray(old.dtype.scale, np.float32) * np.float32(times)
    dtype = replace(old.dtype, scale=tuple(map(float, scale)) if scale.ndim else float(scale))
    values = old.values
    if again:
        steps = values.astype(np.float64) / times
        values = np.clip(np.rint(steps), dtype.qmin, dtype.qmax).astype(values.dtype)
    return {layer: QuantizedWeight(values, dtype)}


def clipped_weights(one: Subject, rng: np.random.Generator) -> Planted:
    layer = some_layer(one, rng)
    return one.planted(layer, "clipping", weights=_rescaled(one, layer, 1 / float(rng.choice([4.0, 8.0])), again=True))


def wide_weights(one: Subject, rng: np.random.Generator) -> Planted:
    layer = some_layer(one, rng)
    return one.planted(layer, "range", weights=_rescaled(one, layer, float(rng.choice([10.0, 20.0])), again=True))


def wrong_scale(one: Subject, rng: np.random.Generator) -> Planted:
    """One layer's scale is wrong, its integers are right."""
    layer = some_layer(one, rng)
    return one.planted(
        layer, "scale", weights=_rescaled(one, layer, float(rng.choice([0.5, 1.5, 2.0, 4.0])), again=False)
    )


def wrong_bias(one: Subject, rng: np.random.Generator) -> Planted:
    layer = some_layer(one, rng, lambda e: len(e.inputs) > 2 and np.abs(e.inputs[2].expr.value.numpy()).max() > 0)
    value = one.model.float_graph.node(layer).expr.inputs[2].expr.value.numpy()
    changed = [np.zeros_like(value), -value, value * 3][int(rng.integers(3))]
    return one.planted(layer, "bias", biases={(layer, 2): changed})


def _with_weight(one: Subject, layer: str, w: np.ndarray) -> dict[str, QuantizedWeight]:
    return {layer: quantize_weight(layer, w.astype(np.float32), one.model.annotation.weights[layer])}


def wrong_fold(one: Subject, rng: np.random.Generator) -> Planted:
    """A batch norm folded with other statistics: a factor for each channel of weight and bias."""
    layer = some_layer(one, rng, lambda e: not e.record.rows and e.inputs[1].shape[0] > 4)
    inputs, w = one.model.float_graph.node(layer).expr.inputs, weight_of(one.model.float_graph, layer)
    factors = np.exp(rng.uniform(-1.2, 1.2, len(w)))
    biases = {}
    if len(inputs) > 2:
        biases[layer, 2] = (inputs[2].expr.value.numpy() * factors).astype(np.float32)
    weights = _with_weight(one, layer, w * factors.reshape(-1, *[1] * (w.ndim - 1)))
    return one.planted(layer, "batch norm", weights=weights, biases=biases)


def reordered(w: np.ndarray) -> np.ndarray:
    """The same numbers as another layout would have them."""
    ways = [np.moveaxis(w, 1, -1).reshape(w.shape)]  # the memory of OHWI read as OIHW
    if w.ndim == 4:
        ways += [w.reshape(w.shape[1], w.shape[0], *w.shape[2:]).swapaxes(0, 1), w.swapaxes(2, 3).reshape(w.shape)]
    else:
        ways = [w.reshape(w.shape[::-1]).T]
    return max(ways, key=lambda made: float(np.square(made - w).sum()))


def wrong_layout(one: Subject, rng: np.random.Generator) -> Planted:
    graph = one.model.float_graph
    moved = lambda e: np.square(reordered(v := e.inputs[1].expr.value.numpy()) - v).sum() > 0.2 * np.square(v).sum()  # noqa: E731
    layer = some_layer(one, rng, moved)
    return one.planted(layer, "layout", weights=_with_weight(one, layer, reordered(weight_of(graph, layer))))


def wrong_norm(one: Subject, rng: np.random.Generator) -> Planted:
    """A batch norm of the float network has the statistics of other data."""
    norms = [e for e in one.source.exprs() if isinstance(e, Apply) and e.op == "batch_norm"][1:]
    if not norms:
        return wrong_fold(one, rng)
    name = norms[int(rng.integers(len(norms)))].output.name
    mean, variance = (n.expr.value.numpy() for n in one.source.node(name).expr.inputs[3:5])
    if rng.integers(2):
        source = with_constant(one.source, name, 4, variance * 100)
    else:
        source = with_constant(one.source, name, 3, mean + 8 * np.sqrt(variance))
    model = quantize_model(source, one.calibration, CONFIG)
    return Planted(model.float_graph, model.qdq_graph, source, name, "batch norm")


KINDS = (
    *(preprocessing, wide_range, wide_weights, clipped_edge, clipped_weights, wrong_bias, wrong_fold, wrong_norm),
    *(wrong_layout, wrong_scale),
)


def faults(one: Subject, number: int) -> Iterator[tuple[str, Planted]]:
    """Fifteen faults of a network: each costs its outputs a dB at least, as a fault of the float network does not."""
    healthy = output_noise(one.model.float_graph, one.model.qdq_graph, one.data)
    for index, kind in enumerate((*KINDS, *KINDS[1::2])):
        for attempt in range(20):
            planted = kind(one, np.random.default_rng([number, index, attempt]))
            if kind is wrong_norm or output_noise(planted.exact, planted.rounded, one.data) < healthy - 1:
                yield kind.__name__, planted
                break


def output_noise(exact: InternalGraph, rounded: InternalGraph, data: Batches) -> float:
    """SQNR of the outputs in dB."""
    noise = Noise()
    for arrays in data:
        a, b = ([y.numpy() for y in interpret(graph, as_tensors(arrays, graph))] for graph in (exact, rounded))
        noise.add(a, b)
    return noise.sqnr_db


def named_first(one: Planted, data: Batches) -> tuple[bool, tuple[Finding, ...]]:
    """Whether layer and cause are named first, and everything that was found."""
    found = diagnose(one.exact, one.rounded, data, source=one.source)
    return bool(found) and (found[0].layer, found[0].cause) == (one.layer, one.cause), found


def resnet() -> TracedModule:
    """ResNet-18 with random weights, whose batch norms have the statistics of random pictures."""
    rng = np.random.default_rng(0)
    module = models.resnet18()
    module.train()
    for _ in range(20):
        module(Tensor(rng.normal(size=(8, 3, 64, 64)).astype(np.float32)))
    return trace_module(module.eval(), Tensor(np.zeros((1, 3, 64, 64), np.float32)))


def subjects(names: list[str]) -> Iterator[Subject]:
    rng = np.random.default_rng(1)
    for name in names:
        if name == "resnet18":
            data = [(rng.normal(size=(1, 3, 64, 64)).astype(np.float32),) for _ in range(12 + SAMPLES)]
            yield Subject.of(name, resnet(), data[:12], data[12:])
            continue
        network = NETWORKS[name]
        photos = photo_set(say=lambda line: None)
        calibration = list(islice(Calibration(photos, network.recipe), 24))
        data = [(view.array(network.recipe),) for view in photos.evaluation[:: len(photos.evaluation) // SAMPLES]]
        yield Subject.of(name, network.traced(say=lambda line: None), calibration, data[:SAMPLES])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", action="append", choices=[*NETWORKS, "resnet18"])
    parser.add_argument("--kind", choices=[kind.__name__ for kind in KINDS])
    chosen = parser.parse_args()
    right = total = 0
    for number, one in enumerate(subjects(chosen.network or [*NETWORKS, "resnet18"])):
        healthy = diagnose(one.model.float_graph, one.model.qdq_graph, one.data, source=one.source)
        print(f"{one.name}: healthy: {counted(healthy)}", flush=True)
        for kind, planted in faults(one, number):
            if chosen.kind not in (None, kind):
                continue
            hit, found = named_first(planted, one.data)
            right, total = right + hit, total + 1
            print(f"  {'ok ' if hit else 'NOT'} {kind:16} {planted.layer}: {planted.cause}", flush=True)
            if not hit:
                print(f"      found: {counted(found)}", flush=True)
    print(f"named first: {right} of {total}")


def counted(found: tuple[Finding, ...]) -> str:
    return "; ".join(map(str, found[:3])) or "nothing"


if __name__ == "__main__":
    main()
