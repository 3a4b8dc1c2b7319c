"""Adagrad."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megengine.kernels import updates
from megengine.optimizer.optimizer import Group, Optimizer, Parameters, State


class Adagrad(Optimizer):
    """Duchi et al. 2011: every element has its own rate, divided by the root of its summed squared gradients.

    `eps` is added below the root, as in MegEngine.
    """

    _state_names: ClassVar[dict[str, bool]] = {"square_avg": True, "step": False}

    def __init__(
        self, params: Parameters, lr: float = 1e-2, lr_decay: float = 0.0, eps: float = 1e-10, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay})

    @staticmethod
    def _rate(state: State, group: Group) -> float:
        return group["lr"] / (1 + (float(state["step"]) - 1) * group["lr_decay"])

    def _native(self, state: State, group: Group) -> updates.NativeUpdate:
        return updates.NativeUpdate("adagrad", ("square_avg",), (self._rate(state, group), group["eps"]))

    @updates.twin(_native)
    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        rate = self._rate(state, group)
        total = state["square_avg"]
        total += g * g
        return w - rate * g / np.sqrt(total + total.dtype.type(group["eps"]))
