"""Adam."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megengine.kernels import updates
from megengine.optimizer.optimizer import Group, Optimizer, Parameters, State


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

    def _keep(self, group: Group) -> float:
        """The factor of the parameter itself."""
        return 1.0

    def _native(self, state: State, group: Group) -> updates.NativeUpdate:
        scalars = moments_scalars(state, group, factor=group["lr"])
        return updates.NativeUpdate("adam", MOMENTS, (*scalars, self._keep(group)))

    @updates.twin(_native)
    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        return w * self._keep(group) - moments_ratio(g, state, group, factor=group["lr"])


MOMENTS = ("exp_avg", "exp_avg_sq")


def moments_scalars(state: State, group: Group, *, factor: float = 1.0, corrected: bool = True) -> tuple[float, ...]:
    """The factors of rules with two moments: b1, 1 - b1, b2, 1 - b2, root factor, eps, ratio factor."""
    (b1, b2), step = group["betas"], float(state["step"])
    first, second = (1 - b1**step, 1 - b2**step) if corrected else (1.0, 1.0)
    return b1, 1 - b1, b2, 1 - b2, second**-0.5, group["eps"], factor / first


def moments_ratio(
    g: np.ndarray, state: State, group: Group, *, factor: float = 1.0, corrected: bool = True
) -> np.ndarray:
    """Factor * m / (sqrt(v) + eps) after m and v, the running moments of the gradient, have moved.

    `corrected` divides them by 1 - beta**step, which makes them unbiased; done in place, it is exact to rounding.
    """
    b1, c1, b2, c2, correction, eps, factor = moments_scalars(state, group, factor=factor, corrected=corrected)
    m, v = (state[name] for name in MOMENTS)
    m *= b1
    m += c1 * g
    v *= b2
    square = g * g
    square *= c2
    v += square
    root = np.sqrt(v, out=square)
    root *= correction
    root += eps
    ratio = np.divide(m, root, out=root)
    ratio *= factor
    return ratio
