"""Adam with decoupled weight decay."""

from __future__ import annotations

from typing import ClassVar

from megengine.optimizer.adam import Adam
from megengine.optimizer.optimizer import Group, Parameters


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

    def _keep(self, group: Group) -> float:
        return 1 - group["lr"] * group["weight_decay"]
