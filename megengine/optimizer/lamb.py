"""Layerwise adaptive moments."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from megengine.kernels import cuda, updates
from megengine.optimizer.adam import MOMENTS, moments_ratio, moments_scalars
from megengine.optimizer.optimizer import Group, Optimizer, Parameters, State
from megengine.tensor import Tensor


class LAMB(Optimizer):
    """You et al. 2020: Adam's direction plus decay, scaled for each parameter by |w| / |direction|.

    Parameters without weight decay are scaled only with `always_adapt`. `bias_correction` as in Adam.
    """

    _state_names: ClassVar[dict[str, bool]] = {"exp_avg": True, "exp_avg_sq": True, "step": False}
    _decays_gradient: ClassVar[bool] = False

    def __init__(
        self,
        params: Parameters,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        bias_correction: bool = True,
        weight_decay: float = 0.0,
        always_adapt: bool = False,
    ) -> None:
        self.bias_correction, self.always_adapt = bias_correction, always_adapt
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    def _native(self, state: State, group: Group) -> updates.NativeUpdate:
        scalars = moments_scalars(state, group, corrected=self.bias_correction)
        return updates.NativeUpdate("moments", MOMENTS, (*scalars, group["weight_decay"]))

    @updates.twin(_native)
    def _update(self, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        direction = moments_ratio(g, state, group, corrected=self.bias_correction)
        return direction + group["weight_decay"] * w if group["weight_decay"] else direction

    def _write_new(self, out: np.ndarray, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        direction = super()._write_new(np.empty(w.shape, w.dtype), w, g, state, group)
        rate = group["lr"]
        if self.always_adapt or group["weight_decay"]:
            of_w, of_direction = np.linalg.norm(w), np.linalg.norm(direction)
            if of_w > 0 and of_direction > 0:
                rate *= float(of_w / of_direction)
        direction *= rate
        return np.subtract(w, direction, out=out)

    def _run_on_gpu(self, batch: cuda.updates.DeviceBatch, group: Group) -> None:
        news = list(batch.outs)
        batch.outs[:] = [w.runtime.empty(w.shape, w.dtype) for w in batch.values]
        batch.run(0.0)
        cuda.updates.adapted(batch, news, group["lr"], adapts=bool(self.always_adapt or group["weight_decay"]))


class LAMBFp16(LAMB):
    """LAMB for half precision parameters: updates go to float32 copies, which the parameters are rounded from."""

    _state_names: ClassVar[dict[str, bool]] = {**LAMB._state_names, "param_fp32": True}
    _copies: ClassVar[str] = "param_fp32"

    def _first_state(self, p: Tensor) -> State:
        return {**super()._first_state(p), "param_fp32": p.numpy().astype(np.float32)}

    def _write_new(self, out: np.ndarray, w: np.ndarray, g: np.ndarray, state: State, group: Group) -> np.ndarray:
        moments = {name: value for name, value in state.items() if name != "param_fp32"}
        single = state["param_fp32"]
        out[...] = super()._write_new(single, single, g, moments, group)
        return out

    _run_on_gpu = LAMB._run_on_gpu
