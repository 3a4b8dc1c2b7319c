"""Batch normalisation."""

from __future__ import annotations

from typing import Any

import numpy as np

from megengine import functional as F
from megengine.core.errors import OptionError
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class BatchNorm2d(Module):
    """Batch normalisation of [N,C,H,W]; parameters and statistics have shape (1,C,1,1)."""

    _axes = 4

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        compute_mode: str = "default",
        param_dim: str = "dim_1c11",
        **kwargs: Any,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats, self.freeze = affine, track_running_stats, freeze
        shape = (1, num_features, *[1] * (self._axes - 2))
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None
        self.running_mean = Tensor(np.zeros(shape, np.float32)) if track_running_stats else None
        self.running_var = Tensor(np.ones(shape, np.float32)) if track_running_stats else None

    def forward(self, inp: Tensor) -> Tensor:
        """Normalise; in training update the running statistics."""
        if len(inp.shape) != self._axes:
            raise OptionError(f"{type(self).__name__}: input has shape {inp.shape}; expected {self._axes} axes")
        training = (self.training and not self.freeze) or not self.track_running_stats
        return F.batch_norm(
            inp,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            training=training,
            momentum=self.momentum,
            eps=self.eps,
        )

    def _saved(self, tensor: Tensor) -> np.ndarray:
        # NOTE: MegEngine's state dicts hold vectors here, although the tensors are (1,C,1,1).
        return tensor.numpy().reshape(-1).copy()

    def _module_info_string(self) -> str:
        return f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"


class BatchNorm1d(BatchNorm2d):
    """Batch normalisation of [N,C,L] (or [N,C])."""

    _axes = 3

    def forward(self, inp: Tensor) -> Tensor:
        """Normalise; in training update the running statistics."""
        return super().forward(F.expand_dims(inp, 2))[:, :, 0] if len(inp.shape) == 2 else super().forward(inp)
