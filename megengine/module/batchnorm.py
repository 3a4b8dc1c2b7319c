"""Batch normalisation."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from megengine import functional as F
from megengine.core.errors import OptionError, ShapeError
from megengine.module import init
from megengine.module.module import Module
from megengine.tensor import Parameter, Tensor


class _BatchNorm(Module):
    """Normalises each channel by the mean and variance of the batch, in evaluation by running statistics.

    Parameters and statistics have shape (1,C,1,1); state dicts hold them as vectors, as MegEngine's do.
    """

    _ndims: ClassVar[tuple[int, ...]] = (4,)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if freeze and not track_running_stats:
            raise OptionError(f"{type(self).__name__}: freeze=True uses running statistics; set track_running_stats")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats, self.freeze = affine, track_running_stats, freeze
        self._track_running_stats_saved = track_running_stats
        shape = (1, num_features, 1, 1)
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None
        self.running_mean = Tensor(np.zeros(shape, np.float32)) if track_running_stats else None
        self.running_var = Tensor(np.ones(shape, np.float32)) if track_running_stats else None

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1."""
        if self.running_mean is not None and self.running_var is not None:
            init.zeros_(self.running_mean)
            init.ones_(self.running_var)

    def reset_parameters(self) -> None:
        """Weight 1, bias 0, statistics as at first."""
        self.reset_running_stats()
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)

    def forward(self, inp: Tensor) -> Tensor:
        """Normalise; in training update the running statistics. Raises ShapeError for another number of axes."""
        ndim = inp.ndim
        if ndim not in self._ndims:
            expected = " or ".join(f"{n}D" for n in self._ndims)
            raise ShapeError(f"{type(self).__name__}: expected {expected} input (got {ndim}D input)")
        picture = inp
        while picture.ndim < 4:
            picture = F.expand_dims(picture, -1)
        if self.track_running_stats and not self._track_running_stats_saved:
            raise OptionError(
                f"{type(self).__name__}: track_running_stats was False when the layer was made, so it has no running "
                "statistics; make it with track_running_stats=True"
            )
        frozen = self.freeze and self.running_mean is not None  # frozen layers use them, tracked or not
        running = (self.running_mean, self.running_var) if frozen or self.track_running_stats else (None, None)
        weight, bias = self.weight, self.bias
        if self.freeze and weight is not None and bias is not None:  # frozen layers get no gradients
            weight, bias = weight.detach(), bias.detach()
        out = F.batch_norm(
            picture,
            *running,
            weight,
            bias,
            training=not frozen and (self.training or not self.track_running_stats),
            momentum=self.momentum,
            eps=self.eps,
        )
        return out if ndim == 4 else F.squeeze(out, tuple(range(ndim, 4)))

    def _saved(self, tensor: Tensor) -> np.ndarray:
        # NOTE: MegEngine's state dicts hold vectors here, although the tensors are (1,C,1,1).
        return tensor.numpy().reshape(-1).copy()

    def _module_info_string(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of [N,C] or [N,C,L]."""

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of [N,C,H,W]."""


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation of [N,C], [N,C,L] or [N,C,H,W] over a group; in one process, of its batch."""

    _ndims = (2, 3, 4)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.9,
        affine: bool = True,
        track_running_stats: bool = True,
        freeze: bool = False,
        group: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, freeze, **kwargs)
        self.group = group
