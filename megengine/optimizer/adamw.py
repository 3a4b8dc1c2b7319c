"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from megengine.kernels import updates
from megengine.optimizer.adam import MOMENTS, Adam, moments_ratio, moments_scalars
from megengine.optimizer.optimizer import Parameters, State


class AdamW(Adam):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019): w -= lr (direction + decay w)."""

    _decays_gradient: ClassVar[bool] = False

    def __init__(
        self,
        params: Parameters,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _native(self, state: State, group: dict[str, Any]) -> updates.NativeUpdate:
        keep = 1 - group["lr"] * group["weight_decay"]
        return updates.NativeUpdate("adam", MOMENTS, (*moments_scalars(state, group, factor=group["lr"]), keep))

    @updates.twin(_native)
    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: dict[str, Any]) -> np.ndarray:
        return w * (1 - group["lr"] * group["weight_decay"]) - moments_ratio(g, state, group, factor=group["lr"])
