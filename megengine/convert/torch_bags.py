"""Bags of embeddings in the form that leaves the number of bags open.

torch gives bags of one length, `embedding_bag` of indices [bags, length], by where each begins: constants that hold the
number of bags. A sum over an axis of length holds the same numbers without them.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any


def bags_by_axes(torch: Any) -> AbstractContextManager[Any]:
    """While it is entered, `embedding_bag` of indices [bags, length] is computed along the second axis."""
    functional = torch.nn.functional

    class Bags(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is functional.embedding_bag:
                made = reduced_bags(torch, *args, **(kwargs or {}))
                if made is not None:
                    return made
            return function(*args, **(kwargs or {}))

    return Bags()


def reduced_bags(
    torch: Any,
    indices: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """The reduced rows [bags, width]; None where bags have lengths of their own, or rows are brought to a norm."""
    if indices.ndim != 2 or max_norm is not None or offsets is not None or indices.shape[1] == 0:
        return None
    rows = torch.nn.functional.embedding(indices, weight)  # [bags, length, width]
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        return rows.amax(1) if mode == "max" else rows.sum(1) if mode == "sum" else rows.mean(1)
    counted = (indices != padding_idx % weight.shape[0]).unsqueeze(-1)
    count = counted.sum(1)
    if mode == "max":
        return torch.where(count > 0, torch.where(counted, rows, -math.inf).amax(1), 0.0)
    total = torch.where(counted, rows, 0.0).sum(1)
    return total if mode == "sum" else total / count.clamp(min=1)


__all__ = ["bags_by_axes"]
