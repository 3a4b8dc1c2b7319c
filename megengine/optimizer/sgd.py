"""Stochastic gradient descent."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megengine.core.errors import OptionError
from megengine.kernels import updates
from megengine.optimizer.optimizer import Group, Optimizer, Parameters, State


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: v = momentum v + g, w -= lr v (Nesterov: lr (g + momentum v)).

    Weight decay adds `weight_decay * w` to the gradient (Sutskever et al. 2013 for the momenta).
    """

    _state_names: ClassVar[dict[str, bool]] = {"momentum_buffer": True}

    def __init__(
        self, params: Parameters, lr: float, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        self.nesterov = nesterov
        if nesterov and momentum <= 0:
            raise OptionError(f"SGD: nesterov needs a momentum above 0, got {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _is_kept(self, name: str, group: Group) -> bool:
        return bool(group["momentum"])

    def _native(self, state: State, group: Group) -> updates.NativeUpdate:
        lr, momentum = group["lr"], group["momentum"]
        if not momentum:
            return updates.NativeUpdate("sgd", (), (lr,))
        return updates.NativeUpdate("nesterov" if self.nesterov else "momentum", ("momentum_buffer",), (lr, momentum))

    @updates.twin(_native)
    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        momentum = group["momentum"]
        if momentum:
            v = state["momentum_buffer"]
            v *= momentum
            v += g
            g = g + momentum * v if self.nesterov else v
        return w - group["lr"] * g
