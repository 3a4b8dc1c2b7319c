"""SmoothQuant: channels of a normalised value are scaled between the gain in front of it and the layers behind it.

Few channels of what LayerNorm gives are far larger than all others, and set the step of all. The gain and the shift are
divided by factors of channels, by which the rows of the weights that read the value are multiplied (Xiao et al. 2023).
The paper's factors, `largest value ** a / largest weight ** (1 - a)`, are tried for some a; those are taken that leave
the least noise by the model of `equalize`. The network computes what it did.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from megengine.quantization.pipeline.annotation import Annotation
from megengine.quantization.pipeline.equalize import (
    STRENGTHS,
    WeightIntegers,
    WeightReader,
    energies,
    largest_values,
    with_constants,
)
from megengine.quantization.pipeline.freeze import turned
from megengine.quantization.pipeline.match import has_matrix
from megengine.quantization.pipeline.spec import Plain
from megengine.quantization.ranges import TensorStatistics, scheme
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.ir.node import TensorNode

GAIN = 0.7  # noise that is left at most, as a part of what there was
LARGEST = 64.0  # factor


@dataclass(frozen=True, slots=True)
class Scaled:
    """A value that is a product with a constant for each channel, its last axis, and perhaps a sum with another one.

    Args:
        value: what layers read.
        constants: the ops and places of the gain and the shift.
        readers: linear layers; nothing else reads the value.
    """

    value: TensorNode
    constants: tuple[tuple[Apply, int], ...]
    readers: tuple[Apply, ...]


def scaled_values(graph: InternalGraph) -> Iterator[Scaled]:
    """All of a graph, in the order of execution."""
    for expr in graph.exprs():
        constants = _constants(expr) if isinstance(expr, Apply) else ()
        if not constants or expr.outputs[0] in graph.outputs:
            continue
        value, readers = expr.outputs[0], list(expr.outputs[0].users)
        if readers and all(_reads(user, value) for user in readers):
            yield Scaled(value, constants, tuple(e for e in readers if isinstance(e, Apply)))


def _constants(last: Apply) -> tuple[tuple[Apply, int], ...]:
    """The gain and the shift behind a value, by op and place; () if it has no gain."""
    shift = _constant(last) if last.record.rule.adds else None
    if shift is None:
        gain = _constant(last) if last.op == "mul" else None
        return () if gain is None else ((last, gain),)
    before = last.inputs[1 - shift]
    if not isinstance(before.expr, Apply) or before.expr.op != "mul" or len(before.users) > 1:
        return ()
    gain = _constant(before.expr)
    return () if gain is None else ((before.expr, gain), (last, shift))


def _constant(expr: Apply) -> int | None:
    """The place of a constant with a number for each channel."""
    channels = expr.outputs[0].shape[-1:]
    for at, node in enumerate(expr.inputs):
        others = expr.inputs[1 - at]
        if isinstance(node.expr, Constant) and node.shape[-1:] == channels and node.spec.size == channels[0]:
            return None if isinstance(others.expr, Constant) or others.shape != expr.outputs[0].shape else at
    return None


def _reads(user: object, value: TensorNode) -> bool:
    if not isinstance(user, Apply) or not user.record.rows or user.inputs[0] is not value or user.inputs[1] is value:
        return False
    return has_matrix(user)


def smoothed(
    graph: InternalGraph, stats: dict[str, TensorStatistics], annotation: Annotation
) -> tuple[InternalGraph, int]:
    """A copy with smoother values, all names as they are, and the number of places that were changed.

    Args:
        graph: canonical float graph.
        stats: statistics of its edges; values without are left.
        annotation: which edges and weights become integers, and of how many bits.
    """
    changed: dict[tuple[str, int], np.ndarray] = {}
    places = 0
    for one in scaled_values(graph):
        spec, seen = annotation.edges.get(one.value.name), stats.get(one.value.name)
        if not isinstance(spec, Plain) or seen is None or seen.channel_maximum is None:
            continue
        if seen.channel_maximum.shape != one.value.shape[-1:]:
            continue
        factors = _factors(one, seen, scheme(spec.scheme).steps, annotation)
        if np.allclose(factors, 1.0):
            continue
        places += 1
        for op, at in one.constants:
            old = op.inputs[at].expr.value.numpy()
            changed[op.outputs[0].name, at] = (old * factors.reshape(old.shape)).astype(np.float32)
        for layer in one.readers:
            weight = layer.inputs[1].expr.value.numpy()
            inverse = (1 / factors)[:, None] if turned(layer) else 1 / factors
            changed[layer.outputs[0].name, 1] = (weight * inverse).astype(np.float32)
    return with_constants(graph, changed), places


def _factors(one: Scaled, seen: TensorStatistics, steps: int, annotation: Annotation) -> np.ndarray:
    """What the value's channels are multiplied by: of some candidates those of the least noise; 1 where little is
    gained.
    """
    most, readers = largest_values(seen), []
    for layer in one.readers:
        weight = layer.inputs[1].expr.value.numpy().astype(np.float64)
        rows = (weight if turned(layer) else weight.T)[:, :, None]
        readers.append(WeightReader(rows, energies(seen), False, WeightIntegers.of(layer, annotation)))
    read = np.max([np.abs(reader.weight).max(axis=(1, 2)) for reader in readers], axis=0)
    ones, spoke = np.ones_like(most), (most > 0) & (read > 0)

    def noise(factors: np.ndarray) -> float:
        arriving = np.full_like(most, ((most * factors).max() / steps) ** 2)
        return sum(reader.noise(factors, arriving) for reader in readers)

    candidates = [ones]
    if spoke.any():
        for a in STRENGTHS:
            factors = np.divide(read ** (1 - a), most**a, out=ones.copy(), where=spoke)
            factors[spoke] /= np.exp(np.log(factors[spoke]).mean())
            candidates.append(np.where(spoke, np.clip(factors, 1 / LARGEST, LARGEST), 1.0))
    best = min(candidates, key=noise)
    return best if noise(best) < GAIN * noise(ones) else ones
