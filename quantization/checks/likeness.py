"""How near the results of two networks are, as `convert` reports of a network in halves."""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from megengine import plan
from megengine.core.dtype import storage_of
from megengine.dispatch.refusal import kinds_named
from megengine.quantization.checks.analysis import Agreement
from megengine.quantization.ranges import Progress, as_batches
from megengine.traced_module import TracedModule
from megengine.traced_module.ir.node import TensorNode


@dataclass(frozen=True, slots=True)
class Likeness:
    """How near the results of a network are to those of the one that it was made from.

    `sqnr_db` and `cosine` are over all results, `largest_error` is the largest difference, `agreement` the share of
    samples whose largest value in the first result stands at the same place, which `samples` counts.
    """

    sqnr_db: float
    cosine: float
    agreement: float
    largest_error: float
    batches: int
    samples: int

    def to_json(self) -> dict[str, Any]:
        """Plain values; an infinite ratio (no error at all) is None."""
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in asdict(self).items()}


def _typed(array: np.ndarray, node: TensorNode) -> np.ndarray:
    return array.astype(storage_of(node.dtype), copy=False)


@kinds_named
def likeness(
    exact: TracedModule, other: TracedModule, batches: Iterable[Any], *, progress: Progress | None = None
) -> Likeness:
    """Compare two networks with equal inputs, as compiled plans, on batches of inputs.

    Raises CalibrationError for batches that are no inputs of the network.
    """
    plans, total = [plan.compile(model) for model in (exact, other)], Agreement()
    same = samples = count = 0
    for arrays in as_batches(batches, plans[0].source):
        wanted, got = (one(*map(_typed, arrays, one.graph.inputs)) for one in plans)
        for a, b in zip(wanted, got, strict=True):
            total.update(a, b.astype(a.dtype))
        a, b = (y[0].reshape(len(y[0]) if y[0].ndim else 1, -1) for y in (wanted, got))
        same += int((a.argmax(1) == b.argmax(1)).sum())
        samples, count = samples + len(a), count + 1
        if progress is not None:
            progress("compare", count, None)
    return Likeness(total.sqnr_db, total.cosine, same / max(samples, 1), total.largest, count, samples)
