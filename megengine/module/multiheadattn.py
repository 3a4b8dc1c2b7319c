"""Multi-head attention."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.module import init
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class MultiHeadAttention(Module):
    """Attention over `num_heads` heads with learnt projections (Vaswani et al. 2017).

    All weights and biases are one parameter `io_weight_bias` [1, n]: the projections of query, key, value and of the
    result, then their biases. Raises OptionError for sizes that do not fit, and for add_bias_kv and add_zero_attn,
    which MegEngine refuses too.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        attn_dropout: float = 0.0,
        out_dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if num_heads < 1 or embed_dim % num_heads:
            raise OptionError(f"MultiHeadAttention: num_heads={num_heads} must divide embed_dim={embed_dim}")
        if add_bias_kv or add_zero_attn:
            raise OptionError("MultiHeadAttention: add_bias_kv and add_zero_attn are not supported, as in MegEngine")
        self.embed_dim, self.kdim, self.vdim = embed_dim, kdim or embed_dim, vdim or embed_dim
        self.add_bias_kv, self.add_zero_attn, self.num_heads = add_bias_kv, add_zero_attn, num_heads
        self.attn_dropout, self.out_dropout = attn_dropout, out_dropout
        self.head_dim, self.bias = embed_dim // num_heads, bias
        weights = embed_dim * (2 * embed_dim + self.kdim + self.vdim)
        self.weight_bias_len = weights + (4 * embed_dim if bias else 0)
        self.io_weight_bias = init.parameter((1, self.weight_bias_len))
        self.bias_k: Parameter | None = None
        self.bias_v: Parameter | None = None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weights as Glorot and Bengio 2010 (uniform, over the one flat parameter), biases 0."""
        init.xavier_uniform_(self.io_weight_bias)
        if self.bias:
            self.io_weight_bias[:, -4 * self.embed_dim :] = 0

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = False,
        average_attn_weights: bool = False,
        is_causal: bool = False,
        maybe_cudnn_style_mask: bool = False,
    ) -> Any:
        """Query [N,L,E], key [N,S,kdim], value [N,S,vdim] -> ([N,L,E], None); with need_weights (.., the weights)."""
        size = self.embed_dim
        return F.multi_head_attention(
            *(query, key, value, size, self.num_heads, self.attn_dropout, self.out_dropout, self.io_weight_bias),
            *(size, size, size, size, self.bias, self.bias, self.bias, self.bias, self.bias_k, self.bias_v),
            *(self.add_zero_attn, key_padding_mask, attn_mask, need_weights, average_attn_weights, is_causal),
            maybe_cudnn_style_mask=maybe_cudnn_style_mask,
            training=self.training,
        )
