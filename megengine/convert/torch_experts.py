"""Products of rows with the weights of their experts (mixtures of experts), which torch's exporter to ONNX lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def expert_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """By op of torch what computes the same, as one product for each expert; NotImplemented for other groups."""

    def by_expert(x: Any, w: Any, *rest: Any, **options: Any) -> Any:
        return _by_expert(torch, x, w, *rest, **options)

    table: dict[Any, Callable[..., Any]] = {torch.ops.aten._grouped_mm.default: by_expert}
    fallback = getattr(
        torch.ops.transformers, "grouped_mm_fallback", None
    )  # an op of that package where it is imported
    if fallback is not None:
        table[fallback.default] = by_expert
    return table


def _by_expert(torch: Any, x: Any, w: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Rows `x` [S, K] times weights `w` [E, K, N]: those in front of offs[e] and behind the ones before by w[e]."""
    if offs is None or bias is not None or (x.ndim, w.ndim) != (2, 3):
        return NotImplemented
    rows = torch.arange(x.shape[0], device=x.device).unsqueeze(1)
    total: Any = 0.0
    for expert in range(w.shape[0]):
        inside = rows < offs[expert]
        inside = inside & (rows >= offs[expert - 1]) if expert else inside
        total = torch.where(inside, x @ w[expert], total)
    return total.to(out_dtype or x.dtype)


__all__ = ["expert_decompositions"]
