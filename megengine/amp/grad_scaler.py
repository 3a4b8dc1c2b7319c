"""Scaled losses, so that small gradients of 16 bits do not vanish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from megengine.autodiff import GradManager
from megengine.autodiff.grad_manager import tensors_of
from megengine.core.dtype import is_float
from megengine.core.errors import ArgumentError, OptionError
from megengine.dispatch.refusal import constructor, explains, shown
from megengine.kernels import cuda
from megengine.kernels.cuda.placing import on_gpu
from megengine.tensor import Tensor


class GradScaler:
    """Scales a loss before its gradient is taken, and the gradients back, so that float16 gradients do not vanish.

    Gradients that are not finite are dropped (None), and the scale shrinks by `backoff_factor`; after
    `growth_interval` good steps it grows by `growth_factor`. An interval of 0 keeps the scale.
    """

    @constructor
    def __init__(
        self,
        init_scale: float = 2.0**4,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if init_scale <= 0 or growth_interval < 0:
            raise OptionError(
                f"GradScaler: init_scale={init_scale}, growth_interval={growth_interval}; "
                "expected a scale above 0 and an interval of at least 0"
            )
        self.scale_factor, self.growth_factor = float(init_scale), growth_factor
        self.backoff_factor, self.growth_interval = backoff_factor, growth_interval
        self._growth_tracker, self._found_non_finite = 0, False

    @explains
    def backward(
        self,
        gm: GradManager,
        y: Any = None,
        dy: Any = None,
        *,
        unscale_grad: bool = True,
        update_scale: bool | str = "if_unscale_grad",
    ) -> None:
        """`gm.backward(y, dy)` of the scaled losses; then the gradients are scaled back, and the scale is updated."""
        if not isinstance(gm, GradManager):
            raise ArgumentError(f"GradScaler.backward: gm is {shown(gm)}; expected a GradManager")
        targets = [] if y is None else tensors_of("y", y)
        seeds = (
            [Tensor(np.ones(t.shape, np.float32), device=t.device) for t in targets]
            if dy is None
            else tensors_of("dy", dy)
        )
        gm.backward(targets, [seed * self.scale_factor for seed in seeds])
        if unscale_grad:
            self.unscale(gm.attached_tensors())
        if update_scale is True or (update_scale == "if_unscale_grad" and unscale_grad):
            self.update()

    @explains
    def unscale(self, grad_tensors: Iterable[Tensor]) -> GradScaler:
        """Scale the gradients of these tensors back; all are dropped if one is not finite."""
        tensors = list(grad_tensors)
        wrong = [t for t in tensors if not isinstance(t, Tensor)]
        if wrong:
            raise ArgumentError(f"GradScaler.unscale: got {shown(wrong[0])}; expected tensors")
        owners = [(t, t.grad) for t in tensors if t.grad is not None]
        if owners and all(on_gpu(gradient.spec.device) and is_float(gradient.dtype) for _, gradient in owners):
            self._unscale_on_gpus(owners)
            return self
        self._found_non_finite = any(not np.isfinite(gradient.numpy()).all() for _, gradient in owners)
        for t, gradient in owners:
            t.grad = None if self._found_non_finite else gradient * (1 / self.scale_factor)
        return self

    def _unscale_on_gpus(self, owners: list[tuple[Tensor, Tensor]]) -> None:
        """One launch for each GPU and dtype, and one number that comes back from each GPU."""
        found = False
        for device in {gradient.spec.device for _, gradient in owners}:
            here = [(t, gradient) for t, gradient in owners if gradient.spec.device == device]
            arrays, not_finite = cuda.updates.unscaled([g._storage() for _, g in here], 1 / self.scale_factor)
            for (t, gradient), array in zip(here, arrays, strict=True):
                t.grad = Tensor._wrap(array, gradient.dtype, device)
            found |= bool(not_finite.numpy())
        self._found_non_finite = found
        if found:
            for t, _ in owners:
                t.grad = None

    @explains
    def update(self, new_scale: float | None = None) -> None:
        """Take a new scale, or change it according to the last gradients."""
        if self.growth_interval == 0:
            return
        if new_scale is not None:
            self.scale_factor = float(new_scale)
        else:
            self._growth_tracker = 0 if self._found_non_finite else self._growth_tracker + 1
            grows = self._growth_tracker >= self.growth_interval
            if self._found_non_finite or grows:
                self.scale_factor *= self.growth_factor if grows else self.backoff_factor
                self._growth_tracker = 0
        self._found_non_finite = False

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and the count of good steps."""
        names = ("scale_factor", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        return {n: getattr(self, n) for n in names}

    @explains
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the result of `state_dict()`."""
        if not isinstance(state, Mapping):
            raise ArgumentError(f"GradScaler.load_state_dict: state is {shown(state)}; expected a dict")
        unknown = sorted(state.keys() - self.state_dict().keys())
        if unknown:
            raise OptionError(f"GradScaler: unknown state {unknown}")
        self.__dict__.update(state)
