"""Tables of learnt rows."""

from __future__ import annotations

from typing import Any

from megengine import functional as F
from megengine.core.errors import IndexOutOfRangeError, OptionError, ShapeError
from megengine.module import init
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class Embedding(Module):
    """Rows of a learnt table [num_embeddings, embedding_dim] by index; normal initial values.

    The row `padding_idx` starts as zeros and gets no gradient. Raises OptionError for max_norm and norm_type, which
    MegEngine refuses too, IndexOutOfRangeError for a padding_idx that is no row, and ShapeError for an initial weight
    of another shape.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
        initial_weight: Tensor | None = None,
        freeze: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if max_norm is not None or norm_type is not None:
            raise OptionError("Embedding: max_norm and norm_type are not supported, as in MegEngine")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise IndexOutOfRangeError(f"Embedding: padding_idx is {padding_idx}; expected a row of {num_embeddings}")
        shape = (num_embeddings, embedding_dim)
        if initial_weight is not None and initial_weight.shape != shape:
            raise ShapeError(f"Embedding: initial_weight has shape {initial_weight.shape}; expected {shape}")
        self.padding_idx, self.max_norm, self.norm_type = padding_idx, max_norm, norm_type
        self.num_embeddings, self.embedding_dim, self.freeze = num_embeddings, embedding_dim, freeze
        self.weight = Parameter(init.parameter(shape) if initial_weight is None else initial_weight)
        if initial_weight is None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal values of mean 0 and standard deviation 1; zeros in the row of the padding."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            rows = self.weight.numpy().copy()
            rows[self.padding_idx] = 0
            self.weight._reset(Tensor(rows, self.weight.dtype, self.weight.device))

    def forward(self, inputs: Tensor) -> Tensor:
        """Integers [...] -> [..., embedding_dim]."""
        return F.embedding(inputs, self.weight.detach() if self.freeze else self.weight, self.padding_idx)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool | None = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
    ) -> Embedding:
        """An embedding of given rows [num_embeddings, embedding_dim], by default without gradient."""
        if len(embeddings.shape) != 2:
            raise ShapeError(f"from_pretrained: embeddings have shape {embeddings.shape}; expected two axes")
        return cls(*embeddings.shape, padding_idx, max_norm, norm_type, embeddings, bool(freeze))
