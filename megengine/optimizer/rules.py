"""Update rules, one class each."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from megengine.core.errors import OptionError
from megengine.optimizer.optimizer import Optimizer, Parameters, State, check_range


class SGD(Optimizer):
    """Stochastic gradient descent with momentum: v = momentum v + g, w -= lr v (Nesterov: lr (g + momentum v)).

    Weight decay adds `weight_decay * w` to the gradient (Sutskever et al. 2013 for the momenta).
    """

    _state_names: ClassVar[dict[str, bool]] = {"momentum_buffer": True}

    def __init__(
        self,
        params: Parameters,
        lr: float,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        self.nesterov = nesterov
        if nesterov and momentum <= 0:
            raise OptionError(f"SGD: nesterov needs a momentum above 0, got {momentum}")
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        check_range("SGD", momentum=group["momentum"], weight_decay=group["weight_decay"])

    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: dict[str, Any]) -> np.ndarray:
        momentum = group["momentum"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        if momentum:
            v = state["momentum_buffer"] = momentum * state["momentum_buffer"] + g
            g = g + momentum * v if self.nesterov else v
        return w - group["lr"] * g


class Adam(Optimizer):
    """Kingma and Ba 2015. Weight decay adds `weight_decay * w` to the gradient."""

    _state_names: ClassVar[dict[str, bool]] = {"exp_avg": True, "exp_avg_sq": True, "step": False}

    def __init__(
        self,
        params: Parameters,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        name = type(self).__name__
        check_range(name, weight_decay=group["weight_decay"], eps=group["eps"])
        check_range(name, below=1.0, beta1=group["betas"][0], beta2=group["betas"][1])

    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: dict[str, Any]) -> np.ndarray:
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        return w - group["lr"] * self._direction(g, state, group)

    @staticmethod
    def _direction(g: np.ndarray, state: State, group: dict[str, Any]) -> np.ndarray:
        b1, b2 = group["betas"]
        state["step"] = state["step"] + np.float32(1)
        step = float(state["step"])
        m = state["exp_avg"] = b1 * state["exp_avg"] + (1 - b1) * g
        v = state["exp_avg_sq"] = b2 * state["exp_avg_sq"] + (1 - b2) * g * g
        return (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + group["eps"])


class AdamW(Adam):
    """Adam with weight decay apart from the gradient (Loshchilov and Hutter 2019): w -= lr (direction + decay w)."""

    def __init__(
        self,
        params: Parameters,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay)

    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: dict[str, Any]) -> np.ndarray:
        return w - group["lr"] * (self._direction(g, state, group) + group["weight_decay"] * w)


class Adagrad(Optimizer):
    """Duchi et al. 2011: every element has its own rate, divided by the root of its summed squared gradients."""

    _state_names: ClassVar[dict[str, bool]] = {"square_avg": True, "step": False}

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        eps: float = 1e-10,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay})

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        check_range("Adagrad", **{k: group[k] for k in ("lr_decay", "eps", "weight_decay")})

    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: dict[str, Any]) -> np.ndarray:
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        rate = group["lr"] / (1 + float(state["step"]) * group["lr_decay"])
        state["step"] = state["step"] + np.float32(1)
        total = state["square_avg"] = state["square_avg"] + g * g
        return w - rate * g / (np.sqrt(total) + group["eps"])


class Adadelta(Optimizer):
    """Zeiler 2012: steps are scaled by the ratio of running roots of past steps and of gradients."""

    _state_names: ClassVar[dict[str, bool]] = {"square_avg": True, "acc_delta": True, "step": False}

    def __init__(
        self,
        params: Parameters,
        lr: float = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay})

    def _check(self, group: dict[str, Any]) -> None:
        super()._check(group)
        check_range("Adadelta", eps=group["eps"], weight_decay=group["weight_decay"])
        check_range("Adadelta", below=1.0, rho=group["rho"])

    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: dict[str, Any]) -> np.ndarray:
        rho, eps = group["rho"], group["eps"]
        if group["weight_decay"]:
            g = g + group["weight_decay"] * w
        state["step"] = state["step"] + np.float32(1)
        v = state["square_avg"] = rho * state["square_avg"] + (1 - rho) * g * g
        delta = np.sqrt(state["acc_delta"] + eps) / np.sqrt(v + eps) * g
        state["acc_delta"] = rho * state["acc_delta"] + (1 - rho) * delta * delta
        return w - group["lr"] * delta
