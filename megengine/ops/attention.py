"""Multi-head attention."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from megengine.core.errors import OptionError, ShapeError
from megengine.core.text import counted
from megengine.core.types import TensorLike
from megengine.dispatch import apply, public
from megengine.ops.common import BOOL, as_tensor, floating, integer
from megengine.ops.loss import dropout
from megengine.ops.matmul import product
from megengine.tensor import Tensor

_OP = "multi_head_attention"


class _Packed:
    """Reads projections off one tensor: the weights [in, out] of q, k, v and o, then their biases."""

    def __init__(self, tensor: Tensor | None, sizes: list[tuple[int, int] | None], biases: list[bool]) -> None:
        lengths = [o * i for o, i in (s for s in sizes if s is not None)]
        lengths += [s[0] for s, has in zip(sizes, biases, strict=True) if s is not None and has]
        total = sum(lengths)
        if (0 if tensor is None else tensor.size) != total:
            shape = None if tensor is None else tensor.shape
            taken = counted(total, "number")
            raise ShapeError(f"{_OP}: io_weight_bias has shape {shape}; the projections take {taken}")
        parts = [] if tensor is None else apply("split", tensor.reshape(-1), sections=tuple(lengths), axis=0)
        supply = iter(parts)
        self.weights = [None if s is None else apply("reshape", next(supply), shape=s[::-1]) for s in sizes]
        self.biases = [next(supply) if s is not None and has else None for s, has in zip(sizes, biases, strict=True)]

    def project(self, k: int, x: Tensor) -> Tensor:
        """Projection k of x, or x itself where there is none."""
        weight, bias = self.weights[k], self.biases[k]
        y = x if weight is None else product(x, weight)
        return y if bias is None else y + bias


def _heads(x: Tensor, count: int) -> Tensor:
    """[N,L,E] -> [N,heads,L,E/heads]."""
    n, length, size = x.shape
    if size % count:
        raise ShapeError(f"{_OP}: {counted(size, 'feature')} cannot be divided into {counted(count, 'head')}")
    return apply("transpose", apply("reshape", x, shape=(n, length, count, size // count)), perm=(0, 2, 1, 3))


def _masked(scores: Tensor, attn_mask: Any, key_padding_mask: Any, is_causal: bool) -> Tensor:
    """Scores [N,heads,L,S] with -inf where a boolean mask is true, plus a float mask."""
    n, heads, length, source = scores.shape
    masks = []
    if attn_mask is not None:
        m = as_tensor(attn_mask)
        if m.ndim == 3 and m.shape[0] == n * heads:
            m = apply("reshape", m, shape=(n, heads, length, source))
        masks.append(m)
    if key_padding_mask is not None:
        masks.append(apply("reshape", as_tensor(key_padding_mask), shape=(n, 1, 1, source)))
    if is_causal:
        masks.append(Tensor(np.triu(np.ones((length, source), bool), 1), device=scores.device))
    for m in masks:
        if m.ndim < 2 or any(a not in (1, b) for a, b in zip(m.shape[::-1], scores.shape[::-1], strict=False)):
            raise ShapeError(f"{_OP}: a mask has shape {m.shape}; expected one that broadcasts to {scores.shape}")
        lowest = Tensor(-np.inf, dtype=scores.dtype, device=scores.device)
        scores = apply("where", m, lowest, scores) if m.dtype == BOOL else scores + m
    return scores


def _returned(weights: Tensor, average: bool) -> Tensor:
    """Weights [N,heads,L,S] in the form of the result: averaged over the heads, or [N*heads,L,S]."""
    if average:
        return apply("mean", weights, axis=(1,), keepdims=False)
    n, heads, *rest = weights.shape
    return apply("reshape", weights, shape=(n * heads, *rest))


@public(home="megengine.functional.nn")
def multi_head_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    embed_dim: int,
    num_heads: int,
    attn_drop: float,
    out_drop: float,
    io_weight_bias: TensorLike,
    qproj_size: int | None = None,
    kproj_size: int | None = None,
    vproj_size: int | None = None,
    oproj_size: int | None = None,
    qbias: bool = False,
    kbias: bool = False,
    vbias: bool = False,
    obias: bool = False,
    bias_k: TensorLike | None = None,
    bias_v: TensorLike | None = None,
    add_zero_attn: bool = False,
    key_padding_mask: TensorLike | None = None,
    attn_mask: TensorLike | None = None,
    need_weights: bool = False,
    average_attn_weights: bool = False,
    is_causal: bool = False,
    maybe_cudnn_style_mask: bool = False,
    reslink: bool = False,
    training: bool = True,
) -> Any:
    """softmax(q k^T / sqrt(d)) v over num_heads heads; query [N,L,Eq], key [N,S,Ek], value [N,S,Ev]: ([N,L,E], None).

    io_weight_bias holds the weights [features, size] of the projections of q, k, v and of the result (each left out
    where its size is None or 0), then their biases. A boolean mask hides where it is true, a float mask is added:
    attn_mask [L,S] or [N*heads,L,S], key_padding_mask [N,S]. With need_weights the second result holds the weights:
    [N*heads,L,S], or their average over the heads [N,L,S].
    Source: Vaswani et al., "Attention Is All You Need", 2017. Raises ShapeError and OptionError.
    """
    for name, option in (("bias_k", bias_k), ("bias_v", bias_v), ("add_zero_attn", add_zero_attn or None)):
        if option is not None:
            raise OptionError(f"{_OP}: {name} is not supported, as in MegEngine; leave it out, extend key and value")
    inputs, num_heads = [floating(v) for v in (query, key, value)], integer(_OP, "num_heads", num_heads)
    for name, x in zip(("query", "key", "value"), inputs, strict=True):
        if x.ndim != 3 or x.shape[0] != inputs[0].shape[0]:
            raise ShapeError(f"{_OP}: {name} has shape {x.shape}; expected [N, length, features]")
    proj = (qproj_size, kproj_size, vproj_size)
    sizes = [(int(p), x.shape[2]) if p else None for p, x in zip(proj, inputs, strict=True)]
    sizes.append((int(oproj_size), int(vproj_size or inputs[2].shape[2])) if oproj_size else None)
    packed = None if io_weight_bias is None else as_tensor(io_weight_bias)
    projections = _Packed(packed, sizes, [qbias, kbias, vbias, obias])
    q, k, v = (_heads(projections.project(i, x), num_heads) for i, x in enumerate(inputs))
    if q.shape[3] != k.shape[3] or k.shape[2] != v.shape[2]:
        raise ShapeError(f"{_OP}: heads of query {q.shape}, key {k.shape} and value {v.shape} do not fit")
    scores = product(q, k, tb=True) * (1 / math.sqrt(max(embed_dim // num_heads, 1)))
    weights = apply("softmax", _masked(scores, attn_mask, key_padding_mask, is_causal), axis=3)
    weights = dropout(weights, attn_drop, training)
    y = apply("transpose", product(weights, v), perm=(0, 2, 1, 3))
    y = projections.project(3, apply("reshape", y, shape=(*y.shape[:2], y.shape[2] * y.shape[3])))
    y = dropout(y, out_drop, training)
    y = y + inputs[0] if reslink else y
    return y, _returned(weights, average_attn_weights) if need_weights else None
