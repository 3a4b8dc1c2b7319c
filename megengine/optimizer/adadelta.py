"""Adadelta."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megengine.kernels import updates
from megengine.optimizer.optimizer import Group, Optimizer, Parameters, State


class Adadelta(Optimizer):
    """Zeiler 2012: steps are scaled by the ratio of running roots of past steps and of gradients."""

    _state_names: ClassVar[dict[str, bool]] = {"square_avg": True, "acc_delta": True, "step": False}

    def __init__(
        self, params: Parameters, lr: float = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay})

    def _native(self, state: State, group: Group) -> updates.NativeUpdate:
        rho = group["rho"]
        return updates.NativeUpdate("adadelta", ("square_avg", "acc_delta"), (group["lr"], rho, 1 - rho, group["eps"]))

    @updates.twin(_native)
    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        rho, eps, v, past = group["rho"], group["eps"], state["square_avg"], state["acc_delta"]
        v *= rho
        v += (1 - rho) * g * g
        delta = np.sqrt(past + eps) / np.sqrt(v + eps) * g
        past *= rho
        past += (1 - rho) * delta * delta
        return w - group["lr"] * delta
