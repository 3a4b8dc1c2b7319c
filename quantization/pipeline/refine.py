"""refine: weights are rounded together, and biases lose the mean error of rounding, by what reaches the layers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from megengine.core.errors import MegEngineError
from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.bias import mean_error
from megengine.quantization.pipeline.calibrate import input_axis
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.freeze import Frozen, in_steps
from megengine.quantization.pipeline.gptq import gptq, takes
from megengine.quantization.pipeline.integer_graph import integer_graphs
from megengine.quantization.pipeline.judging import HARM, Judges
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.pipeline.moments import observe_products
from megengine.quantization.pipeline.sequential import drawn, rounded_in_turn
from megengine.quantization.pipeline.varied import has_few_bits, with_variety
from megengine.quantization.ranges import Progress, TensorStatistics
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph

IN_TURN = ("gptaq", "adaround")
"""Kinds of rounding that take one layer after the other."""


@dataclass(frozen=True, slots=True)
class Refined:
    """The numbers with refined weights and biases, the settings without the stages that were undone, and which.

    `graphs` are those of `integer_graphs`, where judges have made them.
    """

    frozen: Frozen
    config: QuantConfig
    undone: str = ""
    graphs: tuple[InternalGraph, InternalGraph] | None = None


def refine(
    graph: InternalGraph,
    annotation: Annotation,
    frozen: Frozen,
    stats: dict[str, TensorStatistics],
    config: QuantConfig,
    calibration: Iterable[Any],
    *,
    judges: Judges | None = None,
    progress: Progress | None = None,
) -> Refined:
    """Integers of weights that suit the layers' inputs, and biases without the mean error that is left.

    GPTQ and bias correction lessen the error of every layer alone. Where errors of layers do not add up as if they
    were independent, that may harm the network: `judges` then choose among the networks with and without each of the
    stages. GPTAQ, or AdaRound, is one choice more.
    """
    rounded, choices = {"nearest": frozen}, []
    if config.rounding in IN_TURN:  # none of the choices has seen the samples that judge, if others are enough
        calibration = drawn(calibration, graph, judges.samples if judges else ())
        if config.vary and has_few_bits(frozen):
            calibration = with_variety(calibration, graph)
        biases, learned = config.bias_correction, config.rounding == "adaround"
        one = rounded_in_turn(graph, annotation, frozen, calibration, biases=biases, learned=learned, progress=progress)
        choices.append(Refined(one, config))
    if config.rounding != "nearest":
        together = rounded_together(graph, frozen, calibration, progress=progress)
        rounded = {"gptq": together, **rounded}
    for rounding, one in rounded.items():
        plain = config.changed(rounding=rounding, bias_correction=False)
        if config.bias_correction:
            corrected = bias_corrected(graph, annotation, one, stats)
            choices.append(Refined(corrected, plain.changed(bias_correction=True)))
        choices.append(Refined(one, plain))
    return _judged(graph, choices, judges) if judges else choices[0]


def _judged(graph: InternalGraph, choices: Sequence[Refined], judges: Judges) -> Refined:
    """The first choice, if none of the others leaves clearly less noise."""
    first, noise = _seen(graph, choices[0], judges)
    noises = [noise, *(_seen(graph, one, judges)[1] for one in choices[1:])]  # graphs of one alone take memory
    least = int(np.argmin(noises))
    if not np.isfinite(noises[0]) or noises[least] >= HARM * noises[0]:
        return first
    wanted, best = choices[0].config, choices[least].config
    stages = {
        wanted.rounding: wanted.rounding != best.rounding,
        "bias correction": wanted.bias_correction > best.bias_correction,
    }
    names = " and ".join(name for name, gone in stages.items() if gone)
    ratios = [-10 * math.log10(max(noises[at], 1e-30)) for at in (0, least)]
    undone = f"{names} undone: {ratios[0]:.1f} dB with, {ratios[1]:.1f} dB without, on samples that judge"
    return replace(choices[least], undone=undone)


def _seen(graph: InternalGraph, one: Refined, judges: Judges) -> tuple[Refined, float]:
    """A choice with its graphs, and the noise that judges see.

    The noise of a network that is refused, as one with a bias that no integer holds, is infinite.
    """
    try:
        graphs = integer_graphs(graph, one.frozen, one.config)
        return replace(one, graphs=graphs), judges.noise(graphs[1])
    except MegEngineError:
        return one, math.inf


def rounded_together(
    graph: InternalGraph, frozen: Frozen, calibration: Iterable[Any], *, progress: Progress | None = None
) -> Frozen:
    """Integers of weights that suit the layers' inputs (GPTQ)."""
    ops, weights = _ops(graph), dict(frozen.weights)
    layers = [ops[name] for name in weights if takes(ops[name])]
    inputs = materialize(graph, replace(frozen, weights={}, biases={}))  # rounded weights of 4 bits distort them
    products = observe_products(layers, inputs, calibration, progress=progress)
    for number, (name, one) in enumerate(products.items(), 1):
        weights[name] = gptq(ops[name], one, weights[name])
        if progress is not None:
            progress("gptq", number, len(products))
    return replace(frozen, weights=weights)


def bias_corrected(
    graph: InternalGraph, annotation: Annotation, frozen: Frozen, stats: dict[str, TensorStatistics]
) -> Frozen:
    """Biases without the mean error that rounding leaves.

    An input has means along one axis; a layer that sums along another one, as a product along W of what a convolution
    reads too, is left as it is.
    """
    ops, biases = _ops(graph), dict(frozen.biases)
    for name, (owner, at) in annotation.biases.items():
        layer, edge, operands = ops[name], ops[name].inputs[0].name, ops[owner].inputs
        seen = stats.get(edge)
        if seen is None or not seen.means.count or seen.channel_axis != input_axis(layer):
            continue
        data, bias = frozen.edges.get(edge), operands[at].expr.value.numpy() if at < len(operands) else np.float32(0)
        error = mean_error(layer, seen, data, frozen.weights[name])
        corrected = (bias.astype(np.float64) + error).astype(np.float32)
        biases[owner, at] = in_steps(corrected, layer, data, frozen.weights[name])
    return replace(frozen, biases=biases)


def _ops(graph: InternalGraph) -> dict[str, Apply]:
    return {e.outputs[0].name: e for e in graph.exprs() if isinstance(e, Apply)}
