"""Tables of vectors."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.core.errors import OptionError, ShapeError
from megengine.module import init
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class Embedding(Module):
    """Rows of a learnt table [num_embeddings, embedding_dim] by index."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
        initial_weight: Parameter | None = None,
        freeze: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if padding_idx is not None or max_norm is not None or norm_type is not None:
            raise OptionError("Embedding: padding_idx, max_norm and norm_type are not supported, as in MegEngine")
        shape = (num_embeddings, embedding_dim)
        if initial_weight is not None and initial_weight.shape != shape:
            raise ShapeError(f"Embedding: initial_weight has shape {initial_weight.shape}; expected {shape}")
        self.num_embeddings, self.embedding_dim, self.freeze = num_embeddings, embedding_dim, freeze
        self.weight = Parameter(init.parameter(shape) if initial_weight is None else initial_weight)
        if initial_weight is None:
            init.normal_(self.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        """Integers [...] -> [..., embedding_dim]."""
        return F.embedding(inputs, self.weight.detach() if self.freeze else self.weight)
