"""What the batch norms of a float network expect, and what the data gives them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.quantization.ranges import as_tensors
from megengine.tensor import Tensor
from megengine.traced_module import interpret
from megengine.traced_module.ir.expr import Apply, Constant
from megengine.traced_module.ir.graph import InternalGraph
from megengine.traced_module.passes.affine_maps import NORM

FAR = 0.3  # a norm is at odds with the data if so many channels are
SHIFT, SPREAD = 3.0, 16.0  # deviations of a channel's mean, times of its variance


@dataclass(slots=True)
class _Moments:
    """Running sums by channel of what reaches a norm."""

    count: int = 0
    total: np.ndarray | float = 0.0
    squares: np.ndarray | float = 0.0

    def update(self, x: np.ndarray) -> None:
        axes = tuple(i for i in range(x.ndim) if i != 1)
        wide = x.astype(np.float64)
        self.count += x.size // x.shape[1]
        self.total = self.total + wide.sum(axis=axes)
        self.squares = self.squares + (wide**2).sum(axis=axes)


def norm_findings(source: InternalGraph, inputs: Sequence[Any]) -> list[tuple[str, str, str]]:
    """(layer, cause, text) of the first batch norm that the data contradicts, as what follows it is contradicted too.

    If that is the first norm of all, the data is to blame, and the input is named.
    """
    norms = [e for e in source.exprs() if isinstance(e, Apply) and e.op == NORM]
    norms = [e for e in norms if all(isinstance(n.expr, Constant) for n in e.inputs[1:])]
    seen = {e.inputs[0].name: _Moments() for e in norms}

    def look(node: Any, value: Tensor) -> None:
        if node.name in seen:
            seen[node.name].update(value.numpy())

    for arrays in inputs if norms else ():
        interpret(source, as_tensors(arrays, source), on_value=look)
    for number, expr in enumerate(norms):
        share, text = _contradiction(expr, seen[expr.inputs[0].name])
        if share > FAR:
            text = f"{share:.0%} of the channels of {expr.output.name} are not as its statistics say: {text}"
            if number == 0:
                return [(source.inputs[0].name, "preprocessing", text)]
            return [(expr.output.name, "batch norm", text)]
    return []


def _contradiction(expr: Apply, one: _Moments) -> tuple[float, str]:
    """The part of the channels that are far from the statistics of a norm, and how far they are."""
    if not one.count:
        return 0.0, ""
    mean, variance = (n.expr.value.numpy().astype(np.float64).reshape(-1) for n in expr.inputs[3:5])
    variance = variance + expr.attrs["eps"]
    seen_mean = one.total / one.count
    seen = np.maximum(one.squares / one.count - seen_mean**2, 0.0) + expr.attrs["eps"]
    shift, spread = np.abs(seen_mean - mean) / np.sqrt(variance), seen / variance
    far = (shift > SHIFT) | (spread > SPREAD) | (spread < 1 / SPREAD)
    return float(far.mean()), (
        f"in the middle a mean {np.median(shift):.3g} deviations away, and {np.median(spread):.3g} times the variance"
    )
