"""Variety: pictures of less contrast and other brightness beside those that calibrate.

The float network is the teacher, so any input is a lesson. What weights learn from a hundred pictures on one background
need not hold on another: blended with a constant, a picture shows other means and other sizes of all values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from megengine.core.dtype import is_float
from megengine.quantization.pipeline.freeze import Frozen
from megengine.quantization.ranges import Batch, sample_number
from megengine.traced_module.ir.graph import InternalGraph

CONTRAST = (0.3, 1.0)  # between these it is random


def takes_pictures(graph: InternalGraph) -> bool:
    """Whether all inputs are float and have four axes: other inputs may mean nothing when they are blended."""
    return all(node.spec.ndim == 4 and is_float(node.dtype) for node in graph.inputs)


def has_few_bits(frozen: Frozen) -> bool:
    """Whether some weights have fewer than 8 bits; beside others most noise is that of results, which ranges decide."""
    return any(weight.dtype.bits < 8 for weight in frozen.weights.values())


def varied(sample: Batch) -> Batch:
    """A sample, each input blended with a constant between its smallest and its largest value.

    Constants and contrasts are random, and follow from the values of the sample.

    Example:
        >>> (x,) = varied((np.array([0.0, 1.0], np.float32),))
        >>> bool(0 <= x[0] < x[1] <= 1)
        True
    """
    generator = np.random.default_rng(sample_number(sample))
    blended = []
    for x in sample:
        constant = generator.uniform(float(x.min(initial=np.inf)), float(x.max(initial=-np.inf))) if x.size else 0.0
        contrast = generator.uniform(*CONTRAST)
        blended.append((contrast * x + (1 - contrast) * constant).astype(x.dtype))
    return tuple(blended)


def with_variety(samples: Sequence[Batch], graph: InternalGraph) -> list[Batch]:
    """Samples, half of them varied where the graph takes pictures: as many at even places as at odd ones."""
    if not takes_pictures(graph):
        return list(samples)
    return [varied(one) if at % 4 > 1 else one for at, one in enumerate(samples)]
