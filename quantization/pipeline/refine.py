"""refine: weights are rounded together, and biases lose the mean error of rounding, by what reaches the layers."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from megengine.quantization.pipeline.annotate import Annotation
from megengine.quantization.pipeline.bias import mean_error
from megengine.quantization.pipeline.config import QuantConfig
from megengine.quantization.pipeline.freeze import Frozen, in_steps
from megengine.quantization.pipeline.gptq import gptq, takes
from megengine.quantization.pipeline.materialize import materialize
from megengine.quantization.pipeline.moments import observe_products
from megengine.quantization.ranges import Progress, TensorStatistics
from megengine.traced_module.ir.expr import Apply
from megengine.traced_module.ir.graph import InternalGraph


def refine(
    graph: InternalGraph,
    annotation: Annotation,
    frozen: Frozen,
    stats: dict[str, TensorStatistics],
    config: QuantConfig,
    calibration: Iterable[Any],
    *,
    progress: Progress | None = None,
) -> Frozen:
    """Integers of weights that suit the layers' inputs, and biases without the mean error that is left."""
    ops = {e.outputs[0].name: e for e in graph.exprs() if isinstance(e, Apply)}
    weights, biases = dict(frozen.weights), dict(frozen.biases)
    if config.rounding == "gptq":
        layers = [ops[name] for name in weights if takes(ops[name])]
        inputs = materialize(graph, replace(frozen, weights={}, biases={}))  # rounded weights of 4 bits distort them
        products = observe_products(layers, inputs, calibration, progress=progress)
        for number, (name, one) in enumerate(products.items(), 1):
            weights[name] = gptq(ops[name], one, weights[name])
            if progress is not None:
                progress("gptq", number, len(products))
    for name, (owner, at) in annotation.biases.items() if config.bias_correction else ():
        layer, edge, operands = ops[name], ops[name].inputs[0].name, ops[owner].inputs
        if edge not in stats or not stats[edge].means.count:
            continue
        data, bias = frozen.edges.get(edge), operands[at].expr.value.numpy() if at < len(operands) else np.float32(0)
        error = mean_error(layer, stats[edge], data, weights[name])
        corrected = (bias.astype(np.float64) + error).astype(np.float32)
        biases[owner, at] = in_steps(corrected, layer, data, weights[name])
    return replace(frozen, weights=weights, biases=biases)
