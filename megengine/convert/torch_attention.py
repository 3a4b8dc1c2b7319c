"""Attention of torch over other than four axes, which its exporter to ONNX refuses, as products and a softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def attention_decompositions(torch: Any) -> dict[Any, Callable[..., Any]]:
    """By op of torch what computes the same; NotImplemented where the exporter has a translation."""
    op = torch.ops.aten.scaled_dot_product_attention.default
    return {op: lambda q, k, v, *rest, **options: _attention(torch, q, k, v, *rest, **options)}


def _attention(
    torch: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    attn_mask: Any = None,
) -> Any:
    mask = attn_mask if mask is None else mask
    if q.ndim == 4 or dropout or enable_gqa:
        return NotImplemented
    factor = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = q @ k.transpose(-2, -1) * factor
    if is_causal:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if mask is None:
        return torch.softmax(scores, -1) @ v
    scores = torch.where(mask, scores, -math.inf) if mask.dtype is torch.bool else scores + mask
    nothing = (scores == -math.inf).all(-1, keepdim=True)
    return torch.where(nothing, 0.0, torch.softmax(torch.where(nothing, 0.0, scores), -1)) @ v


__all__ = ["attention_decompositions"]
