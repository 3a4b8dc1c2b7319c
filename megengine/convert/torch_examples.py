"""Results of a torch module on the examples with which it is converted, to compare the network with."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np

from megengine.traced_module import TracedModule

_NOISE = 1e-4  # results below that may be what rounding leaves of a difference
_LIMITS = {2: 0.1, 4: 1e-2, 8: 1e-2}  # by bytes of a float: a part of the largest result


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs of a network, and what torch gives for them; no results where these cannot be compared."""

    inputs: tuple[np.ndarray, ...]
    results: tuple[np.ndarray, ...]
    limit: float

    @classmethod
    def of(cls, torch: Any, module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> Examples:
        """What a copy of the module gives. One that fails, or draws random numbers, has no results to compare."""
        leaves, mapped = torch.utils._pytree.tree_leaves, torch.utils._pytree.tree_map
        given = [v.detach().clone() for v in leaves((inputs, named)) if isinstance(v, torch.Tensor)]

        def results() -> list[Any]:
            own = mapped(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, (inputs, named))
            made = copy.deepcopy(module)(*own[0], **own[1])
            numbers = (torch.tensor(v) if isinstance(v, bool | int | float) else v for v in leaves(made))
            return [v.detach().clone() for v in numbers if isinstance(v, torch.Tensor)]

        try:
            first, second = results(), results()
        except Exception:  # the exporter says what is wrong
            return cls((), (), 0.0)
        if len(first) != len(second) or not all(
            torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, second, strict=True)
        ):
            return cls((), (), 0.0)
        narrowest = min((v.element_size() for v in (*given, *first) if v.is_floating_point()), default=4)
        return cls(tuple(map(_array, given)), tuple(map(_array, first)), _LIMITS.get(narrowest, 0.1))

    def distance(self, net: TracedModule) -> float:
        """The largest difference of a result, as a part of its largest number; 0 without results.

        Results of other shapes (complex ones) are not compared, nor are those of inputs that the network does not have.
        """
        wanted = [(node.spec.example.shape, np.dtype(node.spec.dtype)) for node in net.graph.inputs]
        if not self.results or wanted != [(array.shape, array.dtype) for array in self.inputs]:
            return 0.0
        made = net(*self.inputs)
        made = [y.numpy() for y in (made if isinstance(made, (tuple, list)) else (made,))]
        if len(made) != len(self.results):
            return 0.0
        return max((_away(a, b) for a, b in zip(made, self.results, strict=True)), default=0.0)


def _array(value: Any) -> np.ndarray:
    value = value.cpu().resolve_conj().resolve_neg()
    return (value.float() if str(value.dtype) == "torch.bfloat16" else value).numpy()


def _away(made: np.ndarray, wanted: np.ndarray) -> float:
    """By how much a real result differs; the share of integers and truth values that do, all in another type."""
    if made.shape != wanted.shape or not wanted.size or wanted.dtype.kind == "c":
        return 0.0
    if wanted.dtype.kind != "f":
        return float((made != wanted).mean()) if made.dtype == wanted.dtype else 1.0
    a, b = made.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    if (np.isnan(a) != np.isnan(b)).any() or not finite.any():
        return float((np.isnan(a) != np.isnan(b)).mean())
    return float(np.abs(a - b)[finite].max() / max(np.abs(b[finite]).max(), _NOISE))


__all__ = ["Examples"]
